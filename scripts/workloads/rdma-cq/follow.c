// SPDX-License-Identifier: GPL-2.0-only
/*
 * A completion queue fails, and the queue pairs that receive into it follow.
 *
 * usage: follow
 *
 * Three pairs of a writer and a target do the same: a write with immediate data, which
 * takes a receive of the target.  Two targets have one completion queue, with room for
 * three.  The first gets four writes, and only then the second its first one; the third
 * has a queue of its own.  Nobody polls until all is over.
 */
#include "verbs.h"

#define PAIRS 3
#define ROOM 3

static void write_one(struct qp *writer, struct qp *target, uint64_t id,
		      const struct region *page)
{
	post_receive(target, id);
	post_write(writer, id, page, page->rkey, true);
	ring(writer);
}

/* Waits for a target that cannot complete its receive; returns when that was seen. */
static uint64_t died(struct qp *qp)
{
	while ((qp->state = state_of(qp)) != ERR)
		nap(MS);
	return now();
}

int main(void)
{
	struct device device = open_device("rxe0");
	struct region page = register_page(&device);
	struct cq cqs[] = {
		{ .device = &device, .name = "send", .cookie = 1, .asked = 31 },
		{ .device = &device, .name = "shared", .cookie = 2, .asked = ROOM,
		  .by_ioctl = true },
		{ .device = &device, .name = "own", .cookie = 3, .asked = 7 },
	};
	struct qp writers[PAIRS], targets[PAIRS], all[2 * PAIRS];
	struct maker maker = { .name = "cq-maker", .cqs = cqs, .count = 3 };
	uint64_t first, second;
	unsigned int i;

	create_cqs(&maker);
	for (i = 0; i < PAIRS; i++) {
		static const char *const names[] = { "first", "second", "third" };

		writers[i] = (struct qp){ .device = &device, .name = "writer",
					  .cookie = 10 + i,
					  .scq = &cqs[0], .rcq = &cqs[0] };
		targets[i] = (struct qp){ .device = &device, .name = names[i],
					  .cookie = 20 + i, .scq = &cqs[0],
					  .rcq = i < 2 ? &cqs[1] : &cqs[2] };
		create_qp(&writers[i], ROOM + 1, 1);
		create_qp(&targets[i], 1, ROOM + 1);
		to_init(&writers[i]);
		to_init(&targets[i]);
		to_rts(&writers[i], targets[i].number);
		to_rts(&targets[i], writers[i].number);
	}
	for (i = 0; i <= ROOM; i++)
		write_one(&writers[0], &targets[0], i, &page);
	first = died(&targets[0]);
	write_one(&writers[1], &targets[1], 0, &page);
	second = died(&targets[1]);
	write_one(&writers[2], &targets[2], 0, &page);
	drained(writers[2].sq);
	targets[2].state = state_of(&targets[2]);

	for (i = 0; i < PAIRS; i++) {
		all[2 * i] = writers[i];
		all[2 * i + 1] = targets[i];
	}
	read_events(&device, cqs, 3, all, 2 * PAIRS);
	for (i = 0; i < 2 * PAIRS; i++)
		destroy_qp(&all[i]);
	/* No completion can come any more now. */
	read_events(&device, cqs, 3, all, 2 * PAIRS);
	for (i = 0; i < 3; i++) {
		while (poll_cq(&cqs[i]))
			;
		destroy_cq(&cqs[i]);
		say_cq("follow", &cqs[i]);
	}
	for (i = 0; i < 2 * PAIRS; i++)
		say_qp("follow", &all[i]);
	printf("{\"what\": \"died\", \"first\": %llu, \"second\": %llu}\n",
	       (unsigned long long)first, (unsigned long long)second);
	leave(&maker);
	return 0;
}
