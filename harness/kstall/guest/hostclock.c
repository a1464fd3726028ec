// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Print the frequency of the time stamp counter in kHz, by CLOCK_MONOTONIC,
 * which is the clock of QEMU's own devices.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

#define READINGS 1000
#define APART_NS 250000000

struct moment {
	int64_t ns;
	uint64_t ticks;
};

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Read both clocks at once: of many readings the one that took the least time. */
static struct moment read_clocks(void)
{
	struct moment reading = { 0, 0 };
	int64_t least = INT64_MAX;

	for (int i = 0; i < READINGS; i++) {
		int64_t before = now();
		uint64_t ticks = __rdtsc();
		int64_t after = now();

		if (after - before < least) {
			least = after - before;
			reading.ns = before + least / 2;
			reading.ticks = ticks;
		}
	}
	return reading;
}

int main(void)
{
	struct timespec pause = { 0, APART_NS };
	struct moment begin = read_clocks(), end;

	nanosleep(&pause, NULL);
	end = read_clocks();
	printf("%.0f\n", (double)(end.ticks - begin.ticks) * 1e6 / (end.ns - begin.ns));
	return 0;
}
