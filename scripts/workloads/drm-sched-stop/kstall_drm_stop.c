// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kill an entity of the GPU scheduler, at various times
 *
 * The scheduler has credits for one job, whose "hardware" is done with it when the scene
 * says so.  Its worker can be held where it has selected an entity and not yet popped a
 * job, in prepare_job().  Reading the file in debugfs plays all scenes, and gives a line
 * of JSON for each.
 */
#include <drm/gpu_scheduler.h>
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/rbtree.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#define JOBS 3
#define PATIENCE (20 * HZ)

enum moment {
	BEFORE_SELECTED,
	IN_WINDOW,
	AFTER_RUN,
	NEVER,
};

static const struct scene {
	const char *name;
	enum moment killed;
	unsigned int jobs;
	bool twice;
} scenes[] = {
	{ "not killed", NEVER, 2 },
	{ "before it is selected", BEFORE_SELECTED, 2 },
	{ "while selected", IN_WINDOW, 2 },
	{ "while selected, more jobs", IN_WINDOW, JOBS },
	{ "while selected, and once more", IN_WINDOW, 2, .twice = true },
	{ "while selected, its last job", IN_WINDOW, 1 },
	{ "after a job has run", AFTER_RUN, 2 },
};

struct job {
	struct drm_sched_job base;
	struct dma_fence *hardware;
	struct dma_fence *finished;
};

static struct drm_gpu_scheduler sched;
static struct drm_sched_entity entity;
static struct job jobs[JOBS];
static struct device *device;
static struct dentry *file;
static DEFINE_SPINLOCK(hardware_lock);
static DECLARE_COMPLETION(selected);
static DECLARE_COMPLETION(run);
static bool hold, in_window;
static atomic_t ran, freed;

static const char *name(struct dma_fence *fence)
{
	return "kstall";
}

static const struct dma_fence_ops hardware_ops = {
	.get_driver_name = name,
	.get_timeline_name = name,
};

static struct dma_fence *prepare_job(struct drm_sched_job *base,
				     struct drm_sched_entity *of)
{
	unsigned long limit = jiffies + PATIENCE;

	complete(&selected);
	if (hold) {
		hold = false;
		while (!READ_ONCE(of->stopped) && time_before(jiffies, limit))
			msleep(1);
		in_window = READ_ONCE(of->stopped);
	}
	return NULL;
}

static struct dma_fence *run_job(struct drm_sched_job *base)
{
	struct job *job = container_of(base, struct job, base);

	dma_fence_get(job->hardware);
	atomic_inc(&ran);
	complete(&run);
	return job->hardware;
}

static void free_job(struct drm_sched_job *base)
{
	drm_sched_job_cleanup(base);
	atomic_inc(&freed);
}

static enum drm_gpu_sched_stat timedout_job(struct drm_sched_job *base)
{
	return DRM_GPU_SCHED_STAT_NO_HANG;
}

static const struct drm_sched_backend_ops ops = {
	.prepare_job = prepare_job,
	.run_job = run_job,
	.free_job = free_job,
	.timedout_job = timedout_job,
};

/* Whether the worker would still come across the entity. */
static bool is_in_tree(void)
{
	struct drm_sched_rq *rq = sched.sched_rq[entity.rq_priority];
	struct rb_node *node;

	spin_lock(&rq->lock);
	for (node = rb_first_cached(&rq->rb_tree_root); node; node = rb_next(node))
		if (node == &entity.rb_tree_node)
			break;
	spin_unlock(&rq->lock);
	return node;
}

static int submit(unsigned int count)
{
	unsigned int i;
	int ret;

	memset(jobs, 0, sizeof(jobs));
	for (i = 0; i < count; i++) {
		struct job *job = &jobs[i];

		job->hardware = kzalloc(sizeof(*job->hardware), GFP_KERNEL);
		if (!job->hardware)
			return -ENOMEM;
		dma_fence_init(job->hardware, &hardware_ops, &hardware_lock,
			       dma_fence_context_alloc(1), 1);
		ret = drm_sched_job_init(&job->base, &entity, 1, NULL, 1);
		if (ret)
			return ret;
		drm_sched_job_arm(&job->base);
		job->finished = dma_fence_get(&job->base.s_fence->finished);
		drm_sched_entity_push_job(&job->base);
	}
	return 0;
}

/* Have the hardware be done with all that was run, until all jobs are freed. */
static void finish(unsigned int count)
{
	unsigned long limit = jiffies + PATIENCE;
	unsigned int i;

	while (atomic_read(&freed) < count && time_before(jiffies, limit)) {
		for (i = 0; i < count && i < atomic_read(&ran); i++)
			dma_fence_signal(jobs[i].hardware);
		msleep(1);
	}
}

static int play(struct seq_file *seq, const struct scene *scene)
{
	struct drm_sched_init_args args = {
		.ops = &ops,
		.num_rqs = DRM_SCHED_PRIORITY_COUNT,
		.credit_limit = 1,
		.timeout = MAX_SCHEDULE_TIMEOUT,
		.name = "kstall",
		.dev = device,
	};
	struct drm_gpu_scheduler *list = &sched;
	unsigned int i, run_then, killed = 0, done = 0;
	bool met = true, in_tree;
	int ret;

	reinit_completion(&selected);
	reinit_completion(&run);
	atomic_set(&ran, 0);
	atomic_set(&freed, 0);
	hold = scene->killed == IN_WINDOW;
	in_window = false;
	memset(&sched, 0, sizeof(sched));
	ret = drm_sched_init(&sched, &args);
	if (ret)
		return ret;
	ret = drm_sched_entity_init(&entity, DRM_SCHED_PRIORITY_NORMAL, &list, 1, NULL);
	if (ret)
		goto fini;
	if (scene->killed == BEFORE_SELECTED)
		drm_sched_wqueue_stop(&sched);
	ret = submit(scene->jobs);
	if (ret)
		goto fini;
	if (scene->killed == IN_WINDOW)
		met = wait_for_completion_timeout(&selected, PATIENCE);
	else if (scene->killed == AFTER_RUN)
		met = wait_for_completion_timeout(&run, PATIENCE);
	else if (scene->killed == NEVER)
		finish(scene->jobs);
	if (scene->twice)
		drm_sched_entity_kill(&entity);
	drm_sched_entity_fini(&entity);
	in_tree = is_in_tree();
	run_then = atomic_read(&ran);
	if (scene->killed == BEFORE_SELECTED)
		drm_sched_wqueue_start(&sched);
	finish(scene->jobs);
	for (i = 0; i < scene->jobs; i++) {
		int status = dma_fence_get_status(jobs[i].finished);

		killed += status == -ESRCH;
		done += status == 1;
		dma_fence_put(jobs[i].finished);
		dma_fence_put(jobs[i].hardware);
	}
	seq_printf(seq, "{\"scene\": \"%s\", \"jobs\": %u, \"met\": %d, ", scene->name,
		   scene->jobs, met);
	seq_printf(seq, "\"window\": %d, \"tree\": %d, \"ran\": [%u, %u], ", in_window,
		   in_tree, run_then, atomic_read(&ran));
	seq_printf(seq, "\"done\": %u, \"killed\": %u, \"freed\": %u}\n", done, killed,
		   atomic_read(&freed));
fini:
	drm_sched_fini(&sched);
	return ret;
}

static int kstall_drm_stop_show(struct seq_file *seq, void *unused)
{
	unsigned int i;
	int ret = 0;

	for (i = 0; i < ARRAY_SIZE(scenes) && !ret; i++)
		ret = play(seq, &scenes[i]);
	return ret;
}
DEFINE_SHOW_ATTRIBUTE(kstall_drm_stop);

static int __init kstall_drm_stop_init(void)
{
	device = root_device_register("kstall-stop");
	if (IS_ERR(device))
		return PTR_ERR(device);
	file = debugfs_create_file("kstall_drm_stop", 0400, NULL, NULL,
				   &kstall_drm_stop_fops);
	return 0;
}
module_init(kstall_drm_stop_init);

static void __exit kstall_drm_stop_exit(void)
{
	debugfs_remove(file);
	root_device_unregister(device);
}
module_exit(kstall_drm_stop_exit);

MODULE_DESCRIPTION("Kill an entity of the GPU scheduler at various times");
MODULE_LICENSE("GPL");
