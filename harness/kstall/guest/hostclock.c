// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Prints how many thousand ticks a second the time stamp counter makes, by
 * CLOCK_MONOTONIC, which is what QEMU's own devices go by.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

#define LOOKS 1000
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

/* Both clocks at once: of many looks the one that nothing came in between. */
static struct moment look(void)
{
	struct moment found = { 0, 0 };
	int64_t least = INT64_MAX;

	for (int i = 0; i < LOOKS; i++) {
		int64_t before = now();
		uint64_t ticks = __rdtsc();
		int64_t after = now();

		if (after - before < least) {
			least = after - before;
			found.ns = before + least / 2;
			found.ticks = ticks;
		}
	}
	return found;
}

int main(void)
{
	struct timespec pause = { 0, APART_NS };
	struct moment begin = look(), end;

	nanosleep(&pause, NULL);
	end = look();
	printf("%.0f\n", (double)(end.ticks - begin.ticks) * 1e6 / (end.ns - begin.ns));
	return 0;
}
