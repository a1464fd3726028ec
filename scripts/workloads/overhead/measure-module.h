/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Count the instructions of an operation inside the kernel.
 *
 * As measure.h does it in user space, which says how.  The module makes a file in
 * debugfs; reading it measures, and gives what a measured program prints.
 */
#ifndef MEASURE_MODULE_H
#define MEASURE_MODULE_H

#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <asm/msr.h>

#define REPETITIONS 101

/*
 * Print what @repetition takes, which returns the instructions of @operations
 * operations.  Two more repetitions come first, for all that is done only once.
 */
static int measure(struct seq_file *file, unsigned int operations,
		   u64 (*repetition)(void))
{
	static u64 taken[REPETITIONS];
	unsigned int i;

	for (i = 0; i < REPETITIONS + 2; i++)
		taken[i < 2 ? 0 : i - 2] = repetition();
	seq_printf(file, "operations %u\n", operations);
	for (i = 0; i < REPETITIONS; i++)
		seq_printf(file, "%llu\n", taken[i]);
	return 0;
}

#endif
