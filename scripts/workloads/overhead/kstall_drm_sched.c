// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the GPU scheduler executes for a job that has nothing to wait for
 *
 * Jobs are queued while the scheduler is stopped.  Their "hardware" is done with a job
 * at once, so that the worker then goes from one to the next; counted is from the first
 * job's run_job() to the last one's.
 */
#include "measure-module.h"
#include <drm/gpu_scheduler.h>
#include <linux/completion.h>
#include <linux/device.h>

#define JOBS 17

static struct drm_gpu_scheduler sched;
static struct drm_sched_entity entity;
static struct drm_sched_job jobs[JOBS];
static struct device *device;
static struct dentry *file;
static DECLARE_COMPLETION(freed);
static unsigned int left;
static u64 first, last;

static struct dma_fence *run_job(struct drm_sched_job *job)
{
	last = instructions();
	if (job == &jobs[0])
		first = last;
	return NULL;
}

static void free_job(struct drm_sched_job *job)
{
	drm_sched_job_cleanup(job);
	if (!--left)
		complete(&freed);
}

static enum drm_gpu_sched_stat timedout_job(struct drm_sched_job *job)
{
	return DRM_GPU_SCHED_STAT_NO_HANG;
}

static const struct drm_sched_backend_ops ops = {
	.run_job = run_job,
	.free_job = free_job,
	.timedout_job = timedout_job,
};

static u64 repetition(void)
{
	unsigned int i;

	drm_sched_wqueue_stop(&sched);
	reinit_completion(&freed);
	left = JOBS;
	memset(jobs, 0, sizeof(jobs));
	for (i = 0; i < JOBS; i++) {
		if (drm_sched_job_init(&jobs[i], &entity, 1, NULL, 1))
			return 0;
		drm_sched_job_arm(&jobs[i]);
		drm_sched_entity_push_job(&jobs[i]);
	}
	drm_sched_wqueue_start(&sched);
	wait_for_completion(&freed);
	return last - first;
}

static int kstall_drm_sched_show(struct seq_file *seq, void *unused)
{
	return measure(seq, JOBS - 1, repetition);
}
DEFINE_SHOW_ATTRIBUTE(kstall_drm_sched);

static int __init kstall_drm_sched_init(void)
{
	struct drm_sched_init_args args = {
		.ops = &ops,
		.num_rqs = DRM_SCHED_PRIORITY_COUNT,
		.credit_limit = U32_MAX,
		.timeout = MAX_SCHEDULE_TIMEOUT,
		.name = "kstall",
	};
	struct drm_gpu_scheduler *list = &sched;
	int ret;

	device = root_device_register("kstall");
	if (IS_ERR(device))
		return PTR_ERR(device);
	args.dev = device;
	ret = drm_sched_init(&sched, &args);
	if (ret)
		goto unregister;
	ret = drm_sched_entity_init(&entity, DRM_SCHED_PRIORITY_NORMAL, &list, 1, NULL);
	if (ret)
		goto fini;
	file = debugfs_create_file("kstall_drm_sched", 0400, NULL, NULL,
				   &kstall_drm_sched_fops);
	return 0;
fini:
	drm_sched_fini(&sched);
unregister:
	root_device_unregister(device);
	return ret;
}
module_init(kstall_drm_sched_init);

static void __exit kstall_drm_sched_exit(void)
{
	debugfs_remove(file);
	drm_sched_entity_destroy(&entity);
	drm_sched_fini(&sched);
	root_device_unregister(device);
}
module_exit(kstall_drm_sched_exit);

MODULE_DESCRIPTION("Count the instructions of a GPU scheduler's job");
MODULE_LICENSE("GPL");
