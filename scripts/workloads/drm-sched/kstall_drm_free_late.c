// SPDX-License-Identifier: GPL-2.0-only
/*
 * Delay the worker in which the GPU scheduler gives back jobs, when the last one is
 * done, as if it had to wait for a CPU
 */
#include <drm/gpu_scheduler.h>
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/workqueue.h>

/* A test ends within a few. */
#define DELAY_MS 250

static unsigned int times;
module_param(times, uint, 0444);
MODULE_PARM_DESC(times, "how often it was delayed");

static struct kprobe probe;
static struct task_struct *delayed;

static void free_late(struct work_struct *work)
{
	void (*in_time)(struct work_struct *work) = (void *)probe.addr;

	msleep(DELAY_MS);
	WRITE_ONCE(delayed, current);
	in_time(work);
}

static int begins(struct kprobe *p, struct pt_regs *regs)
{
	struct work_struct *work = (void *)regs_get_kernel_argument(regs, 0);
	struct drm_gpu_scheduler *sched =
		container_of(work, struct drm_gpu_scheduler, work_free_job);

	if (READ_ONCE(delayed) == current) {
		WRITE_ONCE(delayed, NULL);
		return 0;
	}
	/* Jobs that still run need the queue to themselves: the next ones start there. */
	if (atomic_read(&sched->credit_count))
		return 0;
	times++;
	instruction_pointer_set(regs, (unsigned long)free_late);
	return 1;
}

static struct kprobe probe = {
	.symbol_name = "drm_sched_free_job_work",
	.pre_handler = begins,
};

static int __init kstall_drm_free_late_init(void)
{
	return register_kprobe(&probe);
}
module_init(kstall_drm_free_late_init);

static void __exit kstall_drm_free_late_exit(void)
{
	unregister_kprobe(&probe);
}
module_exit(kstall_drm_free_late_exit);

MODULE_DESCRIPTION("Delay the GPU scheduler where it gives back jobs");
MODULE_LICENSE("GPL");
