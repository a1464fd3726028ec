// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kill an entity of the GPU scheduler, at various times
 *
 * The scheduler has credits for one job, whose "hardware" is done with it when the scene
 * says so.  Its worker can be held where it has selected an entity and not yet popped a
 * job, in prepare_job().  When the entity has ended, another one queues a job.  Reading
 * the file in debugfs plays all scenes, and gives a line of JSON for each.  A wait has no
 * limit but that user space gives up the scene, as it knows how much time the host gave.
 *
 * A driver would free the entity as soon as it has ended.  Here it is only compared with
 * what it was then, as a kernel with the bug would crash; with frees=1 it is freed, for
 * KASAN.  Jobs keep the entity's statistics, so they are cleaned up last.
 */
#include <drm/gpu_scheduler.h>
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/module.h>
#include <linux/rbtree.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#define JOBS 3

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
	bool has_run;
	struct dma_fence *hardware;
	struct dma_fence *finished;
};

static struct drm_gpu_scheduler sched;
static struct drm_sched_entity *entity, *other;
/* Those of the entity that is killed, and one of the other entity. */
static struct job jobs[JOBS + 1];
static struct device *device;
static struct dentry *file;
static DEFINE_SPINLOCK(hardware_lock);
static DECLARE_COMPLETION(selected);
static DECLARE_COMPLETION(run);
static bool hold, in_window, tree_in_run;
static atomic_t freed;

static unsigned int number;
module_param(number, uint, 0400);
MODULE_PARM_DESC(number, "The scene that is played, from 1 on");

static unsigned int given_up;
module_param(given_up, uint, 0600);
MODULE_PARM_DESC(given_up, "The scene in which nothing is waited for any more");

static bool frees;
module_param(frees, bool, 0400);
MODULE_PARM_DESC(frees, "Free an entity before another one queues a job");

static const char *name(struct dma_fence *fence)
{
	return "kstall";
}

static const struct dma_fence_ops hardware_ops = {
	.get_driver_name = name,
	.get_timeline_name = name,
};

/* Whether to go on waiting; returns a moment later. */
static bool go_on(void)
{
	msleep(1);
	return READ_ONCE(given_up) != READ_ONCE(number);
}

static struct dma_fence *prepare_job(struct drm_sched_job *base,
				     struct drm_sched_entity *of)
{
	complete(&selected);
	if (hold) {
		hold = false;
		while (!READ_ONCE(of->stopped) && go_on())
			;
		in_window = READ_ONCE(of->stopped);
	}
	return NULL;
}

/* Whether the worker would still come across the entity. */
static bool is_in_tree(void)
{
	struct drm_sched_rq *rq = sched.sched_rq[entity->rq_priority];
	struct rb_node *node;

	spin_lock(&rq->lock);
	for (node = rb_first_cached(&rq->rb_tree_root); node; node = rb_next(node))
		if (node == &entity->rb_tree_node)
			break;
	spin_unlock(&rq->lock);
	return node;
}

static struct dma_fence *run_job(struct drm_sched_job *base)
{
	struct job *job = container_of(base, struct job, base);

	/* What kills the entity still waits for the worker, and frees nothing yet. */
	if (in_window && job == jobs)
		tree_in_run = is_in_tree();
	dma_fence_get(job->hardware);
	WRITE_ONCE(job->has_run, true);
	complete(&run);
	return job->hardware;
}

static void free_job(struct drm_sched_job *base)
{
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

static int submit(struct job *job, struct drm_sched_entity *of)
{
	int ret;

	job->hardware = kzalloc(sizeof(*job->hardware), GFP_KERNEL);
	if (!job->hardware)
		return -ENOMEM;
	dma_fence_init(job->hardware, &hardware_ops, &hardware_lock,
		       dma_fence_context_alloc(1), 1);
	ret = drm_sched_job_init(&job->base, of, 1, NULL, 1);
	if (ret)
		return ret;
	drm_sched_job_arm(&job->base);
	job->finished = dma_fence_get(&job->base.s_fence->finished);
	drm_sched_entity_push_job(&job->base);
	return 0;
}

static unsigned int count_run(unsigned int count)
{
	unsigned int i, run = 0;

	for (i = 0; i < count; i++)
		run += READ_ONCE(jobs[i].has_run);
	return run;
}

/* Have the hardware be done with all that was run, until all jobs are freed. */
static void finish(unsigned int count)
{
	unsigned int i;

	do {
		for (i = 0; i < count; i++)
			if (READ_ONCE(jobs[i].has_run))
				dma_fence_signal(jobs[i].hardware);
	} while (atomic_read(&freed) < count && go_on());
}

static bool has_come(struct completion *moment)
{
	while (!try_wait_for_completion(moment))
		if (!go_on())
			return false;
	return true;
}

static int play_with(struct seq_file *seq, const struct scene *scene,
		     struct drm_sched_entity *was)
{
	unsigned int i, run_then, killed = 0, done = 0;
	bool met = true, in_tree, written = false;
	struct job *last = &jobs[scene->jobs];
	int ret;

	if (scene->killed == BEFORE_SELECTED)
		drm_sched_wqueue_stop(&sched);
	for (i = 0; i < scene->jobs; i++) {
		ret = submit(&jobs[i], entity);
		if (ret)
			return ret;
	}
	if (scene->killed == IN_WINDOW)
		met = has_come(&selected);
	else if (scene->killed == AFTER_RUN)
		met = has_come(&run);
	else if (scene->killed == NEVER)
		finish(scene->jobs);
	if (scene->twice)
		drm_sched_entity_kill(entity);
	drm_sched_entity_fini(entity);

	in_tree = is_in_tree();
	memcpy(was, entity, sizeof(*was));
	if (frees) {
		kfree(entity);
		entity = NULL;
	}
	run_then = count_run(scene->jobs);
	ret = submit(last, other);
	if (ret)
		return ret;
	/* Where the first entity was killed, the other one still waits, in the tree. */
	if (entity)
		written = memcmp(was, entity, sizeof(*was));
	if (scene->killed == BEFORE_SELECTED)
		drm_sched_wqueue_start(&sched);
	finish(scene->jobs + 1);
	if (entity)
		written |= memcmp(was, entity, sizeof(*was)) != 0;

	for (i = 0; i < scene->jobs; i++) {
		int status = dma_fence_get_status(jobs[i].finished);

		killed += status == -ESRCH;
		done += status == 1;
	}
	seq_printf(seq, "{\"scene\": \"%s\", \"jobs\": %u, \"met\": %d, ", scene->name,
		   scene->jobs, met);
	seq_printf(seq, "\"window\": %d, \"tree\": %d, \"written\": %d, ", in_window,
		   in_tree, written);
	seq_printf(seq, "\"tree_in_run\": %d, ", tree_in_run);
	seq_printf(seq, "\"ran\": [%u, %u], \"done\": %u, \"killed\": %u, ", run_then,
		   count_run(scene->jobs), done, killed);
	seq_printf(seq, "\"other\": %d, \"freed\": %u}\n",
		   dma_fence_get_status(last->finished), atomic_read(&freed));
	return 0;
}

static int play_on(struct seq_file *seq, const struct scene *scene)
{
	struct drm_gpu_scheduler *list = &sched;
	struct drm_sched_entity *was = kzalloc(sizeof(*was), GFP_KERNEL);
	int ret;

	entity = kzalloc(sizeof(*entity), GFP_KERNEL);
	other = kzalloc(sizeof(*other), GFP_KERNEL);
	if (!was || !entity || !other) {
		kfree(was);
		return -ENOMEM;
	}
	ret = drm_sched_entity_init(entity, DRM_SCHED_PRIORITY_NORMAL, &list, 1, NULL);
	if (!ret)
		ret = drm_sched_entity_init(other, DRM_SCHED_PRIORITY_NORMAL, &list, 1,
					    NULL);
	if (!ret) {
		ret = play_with(seq, scene, was);
		drm_sched_entity_fini(other);
	}
	kfree(was);
	return ret;
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
	unsigned int i;
	int ret;

	WRITE_ONCE(number, number + 1);
	reinit_completion(&selected);
	reinit_completion(&run);
	atomic_set(&freed, 0);
	hold = scene->killed == IN_WINDOW;
	in_window = false;
	tree_in_run = false;
	memset(jobs, 0, sizeof(jobs));
	memset(&sched, 0, sizeof(sched));
	ret = drm_sched_init(&sched, &args);
	if (ret)
		return ret;
	ret = play_on(seq, scene);
	drm_sched_fini(&sched);
	for (i = 0; i < ARRAY_SIZE(jobs); i++) {
		if (jobs[i].base.s_fence)
			drm_sched_job_cleanup(&jobs[i].base);
		dma_fence_put(jobs[i].finished);
		dma_fence_put(jobs[i].hardware);
	}
	kfree(entity);
	kfree(other);
	entity = NULL;
	other = NULL;
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
