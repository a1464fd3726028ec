/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Count the instructions of an operation.
 *
 * Under QEMU's -icount x86's time stamp counter advances by one with each instruction
 * that the guest executes, in user space and in the kernel; elsewhere that is counted by
 * a counter of the processor's, which has to be read through perf.  A repetition is short
 * against the time between two timer ticks, so that most have none in them, and the
 * median of the repetitions is what the operation takes.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#define REPETITIONS 101

__attribute__((noreturn)) static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

#ifdef __x86_64__
#include <x86intrin.h>

static inline void begin_counting(void)
{
}

static inline uint64_t instructions(void)
{
	return __rdtsc();
}
#else
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

static int counter;

static inline void begin_counting(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_INSTRUCTIONS,
		.size = sizeof(attr),
		.pinned = 1,
	};

	/* For all that the one processor executes, as with a time stamp. */
	counter = syscall(SYS_perf_event_open, &attr, -1, 0, -1, 0);
	if (counter < 0)
		die("perf_event_open");
}

static inline uint64_t instructions(void)
{
	uint64_t count;

	if (read(counter, &count, sizeof(count)) != sizeof(count))
		die("reading the counter");
	return count;
}
#endif

/*
 * Time @operations calls of @operation with @data, REPETITIONS times over, and print
 * it.  Two more repetitions come first, for all that is done only once.
 */
static inline void measure(unsigned int operations, void (*operation)(void *),
			   void *data)
{
	static uint64_t taken[REPETITIONS];
	unsigned int i, n;

	begin_counting();
	for (i = 0; i < REPETITIONS + 2; i++) {
		uint64_t before = instructions();

		for (n = 0; n < operations; n++)
			operation(data);
		taken[i < 2 ? 0 : i - 2] = instructions() - before;
	}
	printf("operations %u\n", operations);
	for (i = 0; i < REPETITIONS; i++)
		printf("%llu\n", (unsigned long long)taken[i]);
}

#endif
