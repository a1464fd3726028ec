/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Count the instructions of an operation inside the kernel.
 *
 * The method is that of measure.h, which has it for user space.  The module makes a file
 * in debugfs; reading it measures, and returns what a measured program prints.
 */
#ifndef MEASURE_MODULE_H
#define MEASURE_MODULE_H

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>

#define REPETITIONS 101

#ifdef CONFIG_X86
#include <asm/msr.h>

static inline u64 instructions(void)
{
	return rdtsc();
}

static int begin_counting(void)
{
	return 0;
}

static void end_counting(void)
{
}
#else
#include <linux/perf_event.h>
#include <asm/arm_pmuv3.h>

/* One processor is all there is where instructions are counted. */
static struct perf_event *counter;

static inline u64 instructions(void)
{
	return (u32)read_pmevcntrn(counter->hw.idx);
}

static int begin_counting(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_INSTRUCTIONS,
		.size = sizeof(attr),
		.pinned = 1,
	};

	counter = perf_event_create_kernel_counter(&attr, 0, NULL, NULL, NULL);
	if (IS_ERR(counter))
		return PTR_ERR(counter);
	return 0;
}

static void end_counting(void)
{
	perf_event_release_kernel(counter);
}
#endif

/*
 * Print what @repetition returns, the instructions of @operations operations.  Two more
 * repetitions come first, for all that is done only once.
 */
static int measure(struct seq_file *file, unsigned int operations,
		   u64 (*repetition)(void))
{
	static u64 taken[REPETITIONS];
	unsigned int i;
	int ret = begin_counting();

	if (ret)
		return ret;
	for (i = 0; i < REPETITIONS + 2; i++)
		taken[i < 2 ? 0 : i - 2] = repetition();
	end_counting();
	seq_printf(file, "operations %u\n", operations);
	for (i = 0; i < REPETITIONS; i++)
		seq_printf(file, "%llu\n", taken[i]);
	return 0;
}

#endif
