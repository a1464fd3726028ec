// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the GPU scheduler executes for a job
 *
 * Jobs are queued while the scheduler is stopped.  Counted is from the first job's
 * run_job() to the last one's.
 *
 * kstall_drm_sched		a job that has nothing to wait for: the "hardware" is
 *				done with the one before at once, so that the worker
 *				goes from one to the next
 * kstall_drm_sched_full	a job that waits until the one before has ended, as
 *				there are credits for one only
 */
#include "measure-module.h"
#include <drm/gpu_scheduler.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/dma-fence.h>
#include <linux/workqueue.h>

#define JOBS 17

struct ring {
	struct drm_gpu_scheduler sched;
	struct drm_sched_entity entity;
};

static struct ring ample, narrow;
static struct drm_sched_job jobs[JOBS];
static struct device *device;
static struct dentry *files[2];
static DECLARE_COMPLETION(freed);
static unsigned int left;
static u64 first, last;

static void note(struct drm_sched_job *job)
{
	last = instructions();
	if (job == &jobs[0])
		first = last;
}

static struct dma_fence *run_job(struct drm_sched_job *job)
{
	note(job);
	return NULL;
}

/*
 * The hardware of the narrow ring is a work item of the scheduler's own queue, which is
 * ordered: so that nothing depends on when somebody wakes up.
 */
static struct workqueue_struct *queue;
static struct dma_fence fences[JOBS], *running;
static DEFINE_SPINLOCK(fence_lock);
static bool looked;

static const char *fence_name(struct dma_fence *fence)
{
	return "kstall";
}

static const struct dma_fence_ops fence_ops = {
	.get_driver_name = fence_name,
	.get_timeline_name = fence_name,
};

static void go_on(struct work_struct *work)
{
	/* Behind the scheduler's own item, which finds that there are no credits. */
	if (!looked) {
		looked = true;
		queue_work(queue, work);
	} else {
		dma_fence_signal(running);
	}
}

static DECLARE_WORK(hardware, go_on);

static struct dma_fence *begin_job(struct drm_sched_job *job)
{
	note(job);
	running = &fences[job - jobs];
	/* One reference is kept, as it is no memory to be freed. */
	dma_fence_init(running, &fence_ops, &fence_lock, 0, job - jobs + 1);
	looked = false;
	queue_work(queue, &hardware);
	return dma_fence_get(running);
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

static const struct drm_sched_backend_ops ample_ops = {
	.run_job = run_job,
	.free_job = free_job,
	.timedout_job = timedout_job,
};

static const struct drm_sched_backend_ops narrow_ops = {
	.run_job = begin_job,
	.free_job = free_job,
	.timedout_job = timedout_job,
};

static u64 run_jobs(struct ring *ring)
{
	unsigned int i;

	drm_sched_wqueue_stop(&ring->sched);
	reinit_completion(&freed);
	left = JOBS;
	memset(jobs, 0, sizeof(jobs));
	for (i = 0; i < JOBS; i++) {
		if (drm_sched_job_init(&jobs[i], &ring->entity, 1, NULL, 1))
			return 0;
		drm_sched_job_arm(&jobs[i]);
		drm_sched_entity_push_job(&jobs[i]);
	}
	drm_sched_wqueue_start(&ring->sched);
	wait_for_completion(&freed);
	return last - first;
}

static u64 run_ample(void)
{
	return run_jobs(&ample);
}

static u64 run_narrow(void)
{
	return run_jobs(&narrow);
}

static int kstall_drm_sched_show(struct seq_file *seq, void *unused)
{
	return measure(seq, JOBS - 1, run_ample);
}
DEFINE_SHOW_ATTRIBUTE(kstall_drm_sched);

static int kstall_drm_sched_full_show(struct seq_file *seq, void *unused)
{
	return measure(seq, JOBS - 1, run_narrow);
}
DEFINE_SHOW_ATTRIBUTE(kstall_drm_sched_full);

static int set_up(struct ring *ring, const struct drm_sched_backend_ops *ops,
		  u32 credits, struct workqueue_struct *submit_wq)
{
	struct drm_sched_init_args args = {
		.ops = ops,
		.submit_wq = submit_wq,
		.num_rqs = DRM_SCHED_PRIORITY_COUNT,
		.credit_limit = credits,
		.timeout = MAX_SCHEDULE_TIMEOUT,
		.name = "kstall",
		.dev = device,
	};
	struct drm_gpu_scheduler *list = &ring->sched;
	int ret;

	ret = drm_sched_init(&ring->sched, &args);
	if (ret)
		return ret;
	ret = drm_sched_entity_init(&ring->entity, DRM_SCHED_PRIORITY_NORMAL, &list, 1,
				    NULL);
	if (ret)
		drm_sched_fini(&ring->sched);
	return ret;
}

static void tear_down(struct ring *ring)
{
	drm_sched_entity_destroy(&ring->entity);
	drm_sched_fini(&ring->sched);
}

static int __init kstall_drm_sched_init(void)
{
	int ret;

	device = root_device_register("kstall");
	if (IS_ERR(device))
		return PTR_ERR(device);
	queue = alloc_ordered_workqueue("kstall", 0);
	if (!queue) {
		ret = -ENOMEM;
		goto unregister;
	}
	ret = set_up(&ample, &ample_ops, U32_MAX, NULL);
	if (ret)
		goto destroy;
	ret = set_up(&narrow, &narrow_ops, 1, queue);
	if (ret)
		goto tear_down;
	files[0] = debugfs_create_file("kstall_drm_sched", 0400, NULL, NULL,
				       &kstall_drm_sched_fops);
	files[1] = debugfs_create_file("kstall_drm_sched_full", 0400, NULL, NULL,
				       &kstall_drm_sched_full_fops);
	return 0;
tear_down:
	tear_down(&ample);
destroy:
	destroy_workqueue(queue);
unregister:
	root_device_unregister(device);
	return ret;
}
module_init(kstall_drm_sched_init);

static void __exit kstall_drm_sched_exit(void)
{
	debugfs_remove(files[0]);
	debugfs_remove(files[1]);
	tear_down(&narrow);
	tear_down(&ample);
	destroy_workqueue(queue);
	root_device_unregister(device);
}
module_exit(kstall_drm_sched_exit);

MODULE_DESCRIPTION("Count the instructions of a GPU scheduler's job");
MODULE_LICENSE("GPL");
