// SPDX-License-Identifier: GPL-2.0-only
/*
 * RDMA writes with a key that the target has not given: its queue pair fails, and
 * mostly with an asynchronous event.
 *
 * usage: badkey RUN...		one after the other
 *
 * plain	an event at the target, a failed completion at the writer
 * immediate	with immediate data there is a receive that can fail instead
 * overrun	before it, good writes whose completions nobody polls, and three of
 *		which the completion queue has no room for
 */
#include "verbs.h"

#define ENTRIES 7

/* The driver reports the failure to the peer before it handles it itself. */
static void failed(struct qp *qp)
{
	while ((qp->state = state_of(qp)) != ERR)
		nap(MS);
}

struct wanted {
	struct qp *qps;
	uint32_t sends;
};

static void *make_qps(void *argument)
{
	struct wanted *wanted = argument;
	int i;

	prctl(PR_SET_NAME, "qp-maker");
	for (i = 0; i < 2; i++)
		create_qp(&wanted->qps[i], wanted->sends, 1);
	return NULL;
}

/* By a thread that is neither the main one nor that of the CQs, and ends then. */
static void create_qps(struct qp *qps, uint32_t sends)
{
	struct wanted wanted = { .qps = qps, .sends = sends };
	pthread_t thread;

	errno = pthread_create(&thread, NULL, make_qps, &wanted);
	if (!errno)
		errno = pthread_join(thread, NULL);
	if (errno)
		die("thread");
}

static void badkey(const char *run)
{
	struct device device = open_device("rxe0");
	struct region page = register_page(&device);
	bool immediate = !strcmp(run, "immediate");
	unsigned int i, good = strcmp(run, "overrun") ? 0 : ENTRIES + 3;
	struct cq cqs[2] = {
		{ .device = &device, .name = "send", .cookie = 1, .asked = ENTRIES },
		{ .device = &device, .name = "receive", .cookie = 2, .asked = 31,
		  .by_ioctl = true },
	};
	struct qp qps[2] = {
		{ .device = &device, .name = "writer", .cookie = 3,
		  .scq = &cqs[0], .rcq = &cqs[1] },
		{ .device = &device, .name = "target", .cookie = 4,
		  .scq = &cqs[0], .rcq = &cqs[1] },
	};
	struct maker maker = { .name = "cq-maker", .cqs = cqs, .count = 2 };

	create_cqs(&maker);
	create_qps(qps, good + 1);
	for (i = 0; i < 2; i++)
		to_init(&qps[i]);
	for (i = 0; i < 2; i++)
		to_rts(&qps[i], qps[!i].number);
	if (immediate)
		post_receive(&qps[1], 0);
	for (i = 0; i < good; i++)
		post_write(&qps[0], i, &page, page.rkey, false);
	if (good) {
		ring(&qps[0]);
		drained(qps[0].sq);
	}
	post_write(&qps[0], good, &page, page.rkey ^ 0x5a, immediate);
	ring(&qps[0]);
	drained(qps[0].sq);
	for (i = 0; i < 2; i++)
		failed(&qps[i]);
	/* A queue pair's events are dropped with it if nobody has read them. */
	read_events(&device, cqs, 2, qps, 2);
	for (i = 0; i < 2; i++)
		destroy_qp(&qps[i]);
	/* No completion can come any more now. */
	read_events(&device, cqs, 2, qps, 2);
	for (i = 0; i < 2; i++) {
		while (poll_cq(&cqs[i]))
			;
		destroy_cq(&cqs[i]);
		say_cq(run, &cqs[i]);
		say_qp(run, &qps[i]);
	}
	leave(&maker);
	close(device.async);
	close(device.fd);
}

int main(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++)
		badkey(argv[i]);
	return argc < 2;
}
