// SPDX-License-Identifier: GPL-2.0-only
/*
 * Delay the KUnit tests of the GPU scheduler each time that they begin a job, as if
 * their thread had to wait for a CPU
 */
#include <linux/kprobes.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/processor.h>
#include <linux/sched.h>
#include <linux/string.h>

/* Their jobs take 1 ms, and then have to be given back by a worker. */
#define DELAY (5 * NSEC_PER_MSEC)

static int late(struct kprobe *probe, struct pt_regs *regs)
{
	u64 end = ktime_get_ns() + DELAY;

	if (!strcmp(current->comm, "kunit_try_catch"))
		while (ktime_get_ns() < end)
			cpu_relax();
	return 0;
}

static struct kprobe probe = {
	.symbol_name = "drm_sched_job_init",
	.pre_handler = late,
};

static int __init kstall_drm_late_init(void)
{
	return register_kprobe(&probe);
}
module_init(kstall_drm_late_init);

static void __exit kstall_drm_late_exit(void)
{
	unregister_kprobe(&probe);
}
module_exit(kstall_drm_late_exit);

MODULE_DESCRIPTION("Delay the KUnit tests of the GPU scheduler");
MODULE_LICENSE("GPL");
