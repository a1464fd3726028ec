// SPDX-License-Identifier: GPL-2.0-only
/*
 * RDMA writes between two queue pairs of a soft RoCE device, as a rank of a training
 * job does them, with a completion queue that is polled or not.
 *
 * usage: writes NAME:ENTRIES:WRITES:BATCH...	a process each, at the same time
 *
 * Each write has a completion.  With a BATCH, that many are posted, and polled until
 * they are all there, and so on; with a BATCH of 0 all are posted and nobody polls
 * until the queue pairs are gone.
 */
#include "verbs.h"

static void take(struct cq *cq, unsigned int count)
{
	while (count)
		count -= poll_cq(cq);
}

static void rank(const char *run, const char *name, uint32_t entries,
		 unsigned int writes, unsigned int batch)
{
	struct device device = open_device("rxe0");
	struct region page = register_page(&device);
	struct cq cqs[2] = {
		{ .device = &device, .name = "send", .cookie = 1, .asked = entries },
		{ .device = &device, .name = "receive", .cookie = 2,
		  .asked = 255, .by_ioctl = true },
	};
	struct qp qps[2] = {
		{ .device = &device, .name = "writer", .cookie = 3,
		  .scq = &cqs[0], .rcq = &cqs[1] },
		{ .device = &device, .name = "target", .cookie = 4,
		  .scq = &cqs[0], .rcq = &cqs[1] },
	};
	struct maker maker = { .name = name, .cqs = cqs, .count = 2 };
	unsigned int i;

	create_cqs(&maker);
	for (i = 0; i < 2; i++) {
		create_qp(&qps[i], batch ? batch : writes, 1);
		to_init(&qps[i]);
	}
	for (i = 0; i < 2; i++)
		to_rts(&qps[i], qps[!i].number);
	for (i = 0; i < writes; i++) {
		post_write(&qps[0], i, &page, page.rkey, false);
		if (batch && (i + 1) % batch == 0) {
			ring(&qps[0]);
			take(&cqs[0], batch);
		}
	}
	ring(&qps[0]);
	drained(qps[0].sq);
	for (i = 0; i < 2; i++) {
		qps[i].state = state_of(&qps[i]);
		/* Nothing more completes after that. */
		destroy_qp(&qps[i]);
	}
	read_events(&device, cqs, 2, qps, 2);
	for (i = 0; i < 2; i++) {
		while (poll_cq(&cqs[i]))
			;
		destroy_cq(&cqs[i]);
		say_cq(run, &cqs[i]);
		say_qp(run, &qps[i]);
	}
}

int main(int argc, char **argv)
{
	int i, status, bad = 0;

	for (i = 1; i < argc; i++) {
		char name[16];
		unsigned int entries, writes, batch;

		if (sscanf(argv[i], "%15[^:]:%u:%u:%u", name, &entries, &writes,
			   &batch) != 4 || !entries || !writes) {
			fprintf(stderr, "usage: writes NAME:ENTRIES:WRITES:BATCH...\n");
			return 1;
		}
		/* The device exists before the first of them needs it. */
		if (i == 1)
			close(open_device("rxe0").fd);
		if (!fork()) {
			rank(argv[i], name, entries, writes, batch);
			return 0;
		}
	}
	while (wait(&status) > 0)
		bad |= status;
	return argc < 2 || bad;
}
