// SPDX-License-Identifier: GPL-2.0-only
/*
 * io_uring-sq - submit no-ops, or what cannot be submitted, and count instructions
 *
 * usage: io_uring-sq nop BATCH | async | short | wait
 *
 * nop	io_uring_enter() with BATCH no-ops, all of which complete at once
 * async	io_uring_enter() with a no-op that an io-wq worker runs, until it has
 * short	io_uring_enter() with two SQEs, the first of which is no operation: the
 *		second is left behind, and taken back here
 * wait	io_uring_enter() that waits until the SQ thread has taken the only entry
 */
#define _GNU_SOURCE
#include "measure.h"
#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 64

static struct {
	int fd;
	unsigned int batch, *sq_tail, *cq_head, *cq_tail, mask;
	struct io_uring_sqe *sqes;
} ring;

static void *map(size_t size, off_t offset)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			ring.fd, offset);

	if (at == MAP_FAILED)
		die("mmap");
	return at;
}

static void set_up(unsigned int entries, unsigned int flags)
{
	struct io_uring_params p = { .flags = flags };
	unsigned int i, *array;
	char *rings;

	ring.fd = syscall(SYS_io_uring_setup, entries, &p);
	if (ring.fd < 0)
		die("io_uring_setup");
	/* Both rings are in one mapping, and the array of SQEs comes last in it. */
	rings = map(p.sq_off.array + p.sq_entries * sizeof(*array), IORING_OFF_SQ_RING);
	ring.sq_tail = (unsigned int *)(rings + p.sq_off.tail);
	ring.cq_head = (unsigned int *)(rings + p.cq_off.head);
	ring.cq_tail = (unsigned int *)(rings + p.cq_off.tail);
	ring.mask = *(unsigned int *)(rings + p.sq_off.ring_mask);
	array = (unsigned int *)(rings + p.sq_off.array);
	for (i = 0; i < entries; i++)
		array[i] = i;
	ring.sqes = map(entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
}

static void queue(unsigned char opcode, unsigned char flags)
{
	struct io_uring_sqe *sqe = &ring.sqes[*ring.sq_tail & ring.mask];

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = opcode;
	sqe->flags = flags;
	__atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
}

static void enter(unsigned int count, int expected, unsigned int wait_for,
		  unsigned int flags)
{
	int ret = syscall(SYS_io_uring_enter, ring.fd, count, wait_for, flags, NULL, 0);

	if (ret != expected) {
		fprintf(stderr, "io_uring_enter: %d, expected %d\n", ret, expected);
		exit(1);
	}
	__atomic_store_n(ring.cq_head, *ring.cq_tail, __ATOMIC_RELEASE);
}

static void nop(void *unused)
{
	unsigned int i;

	(void)unused;
	for (i = 0; i < ring.batch; i++)
		queue(IORING_OP_NOP, 0);
	enter(ring.batch, ring.batch, 0, IORING_ENTER_GETEVENTS);
}

static void async(void *unused)
{
	(void)unused;
	queue(IORING_OP_NOP, IOSQE_ASYNC);
	enter(1, 1, 1, IORING_ENTER_GETEVENTS);
}

static void fall_short(void *unused)
{
	(void)unused;
	queue(255, 0);
	queue(IORING_OP_NOP, 0);
	enter(2, 1, 0, IORING_ENTER_GETEVENTS);
	/* What was left behind is taken by a call of its own. */
	enter(1, 1, 0, IORING_ENTER_GETEVENTS);
}

/*
 * The SQ thread spins, and would go on until the next tick.  A task with a real-time
 * priority, which has the only CPU as soon as it is woken, leaves it no time to.
 */
static void take_precedence(void)
{
	struct sched_param param = { .sched_priority = 1 };

	/* The thread, which there is already, keeps its own policy. */
	if (sched_setscheduler(0, SCHED_FIFO, &param))
		die("sched_setscheduler");
}

static void wait_for_room(void *unused)
{
	(void)unused;
	queue(IORING_OP_NOP, 0);
	enter(0, 0, 0, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_SQ_WAIT);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "wait")) {
		set_up(1, IORING_SETUP_SQPOLL);
		take_precedence();
		measure(50, wait_for_room, NULL);
		return 0;
	}
	set_up(ENTRIES, 0);
	if (argc == 3 && !strcmp(argv[1], "nop")) {
		ring.batch = atoi(argv[2]);
		if (ring.batch < 1 || ring.batch > ENTRIES)
			return 1;
		measure(256 / ring.batch + 1, nop, NULL);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "async")) {
		measure(50, async, NULL);
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "short")) {
		measure(100, fall_short, NULL);
		return 0;
	}
	fprintf(stderr, "usage: io_uring-sq nop BATCH | async | short | wait\n");
	return 1;
}
