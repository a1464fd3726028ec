/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Count the instructions of an operation.
 *
 * Under QEMU's -icount the time stamp counter advances by one with each instruction
 * that the guest executes, in user space and in the kernel.  A repetition is short
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
#include <x86intrin.h>

#define REPETITIONS 101

__attribute__((noreturn)) static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/*
 * Time @operations calls of @operation with @data, REPETITIONS times over, and print
 * it.  Two more repetitions come first, for all that is done only once.
 */
static inline void measure(unsigned int operations, void (*operation)(void *),
			   void *data)
{
	static uint64_t taken[REPETITIONS];
	unsigned int i, n;

	for (i = 0; i < REPETITIONS + 2; i++) {
		uint64_t before = __rdtsc();

		for (n = 0; n < operations; n++)
			operation(data);
		taken[i < 2 ? 0 : i - 2] = __rdtsc() - before;
	}
	printf("operations %u\n", operations);
	for (i = 0; i < REPETITIONS; i++)
		printf("%llu\n", (unsigned long long)taken[i]);
}

#endif
