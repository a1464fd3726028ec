// SPDX-License-Identifier: GPL-2.0-only
/*
 * Let a queue pair that has receives posted fail: all of them are flushed to its
 * completion queue, into which only so many fit.
 *
 * usage: flush DEVICE:ABI:ENTRIES:RECEIVES:OWNER...	one after the other
 *
 * DEVICE is rxe0 or siw0, ABI (write or ioctl) is how the completion queue of ENTRIES
 * is created, OWNER (there or gone) says whether the thread that did so still exists
 * when the queue pair fails.  No peer and no address are needed.
 */
#include "verbs.h"

static void flush(const char *run, const char *name, bool by_ioctl, uint32_t entries,
		  unsigned int receives, bool gone)
{
	struct device device = open_device(name);
	struct cq cqs[2] = {
		{ .device = &device, .name = "receive", .cookie = 1, .asked = entries,
		  .by_ioctl = by_ioctl },
		{ .device = &device, .name = "send", .cookie = 2, .asked = 63,
		  .by_ioctl = by_ioctl },
	};
	struct qp qp = {
		.device = &device, .name = "flushed", .cookie = 3,
		.scq = &cqs[1], .rcq = &cqs[0],
	};
	struct maker maker = { .name = "cq-maker", .cqs = cqs, .count = 2 };
	unsigned int i;

	create_cqs(&maker);
	create_qp(&qp, 1, receives);
	if (!device.siw)
		to_init(&qp);
	for (i = 0; i < receives; i++)
		post_receive(&qp, i);
	if (gone)
		leave(&maker);
	to_error(&qp);
	/* Soft iWARP has done it by now, soft RoCE does it in a worker. */
	if (!device.siw)
		drained(qp.rq);
	qp.state = state_of(&qp);
	for (i = 0; i < 2; i++)
		while (poll_cq(&cqs[i]))
			;
	/* Nothing more completes after that. */
	destroy_qp(&qp);
	read_events(&device, cqs, 2, &qp, 1);
	for (i = 0; i < 2; i++) {
		destroy_cq(&cqs[i]);
		say_cq(run, &cqs[i]);
	}
	say_qp(run, &qp);
	if (!gone)
		leave(&maker);
	close(device.async);
	close(device.fd);
}

int main(int argc, char **argv)
{
	int i;

	for (i = 1; i < argc; i++) {
		char name[8], abi[8], owner[8];
		unsigned int entries, receives;

		if (sscanf(argv[i], "%7[^:]:%7[^:]:%u:%u:%7s", name, abi, &entries,
			   &receives, owner) != 5 || !entries || !receives)
			break;
		flush(argv[i], name, !strcmp(abi, "ioctl"), entries, receives,
		      !strcmp(owner, "gone"));
	}
	if (argc < 2 || i < argc) {
		fprintf(stderr, "usage: flush DEVICE:ABI:ENTRIES:RECEIVES:OWNER...\n");
		return 1;
	}
	return 0;
}
