// SPDX-License-Identifier: GPL-2.0-only
/*
 * Delay the KUnit tests of the GPU scheduler each time that they have queued a job, as
 * if their thread had to wait for a CPU
 */
#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/string.h>

/* Their jobs take 1 ms, and then have to be given back by a worker. */
#define DELAY_MS 5

static int late(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	if (!strcmp(current->comm, "kunit_try_catch"))
		mdelay(DELAY_MS);
	return 0;
}

static struct kretprobe probe = {
	.kp.symbol_name = "drm_sched_entity_push_job",
	.handler = late,
};

static int __init kstall_drm_late_init(void)
{
	return register_kretprobe(&probe);
}
module_init(kstall_drm_late_init);

static void __exit kstall_drm_late_exit(void)
{
	unregister_kretprobe(&probe);
}
module_exit(kstall_drm_late_exit);

MODULE_DESCRIPTION("Delay the KUnit tests of the GPU scheduler");
MODULE_LICENSE("GPL");
