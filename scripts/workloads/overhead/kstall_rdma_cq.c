// SPDX-License-Identifier: GPL-2.0-only
/*
 * What ib_core executes for a successful work completion
 *
 * The device is a dummy: all that it does is to hand out prepared completions.
 */
#include "measure-module.h"
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#define COMPLETIONS 1024

static struct ib_device *device;
static struct ib_cq *cq;
static struct dentry *file;

static void done(struct ib_cq *queue, struct ib_wc *wc)
{
}

static struct ib_cqe cqe = { .done = done };

static int poll(struct ib_cq *queue, int count, struct ib_wc *wc)
{
	int i;

	for (i = 0; i < count; i++) {
		wc[i].wr_cqe = &cqe;
		wc[i].status = IB_WC_SUCCESS;
	}
	return count;
}

static u64 repetition(void)
{
	u64 before = instructions();

	ib_process_cq_direct(cq, COMPLETIONS);
	return instructions() - before;
}

static int kstall_rdma_cq_show(struct seq_file *seq, void *unused)
{
	return measure(seq, COMPLETIONS, repetition);
}
DEFINE_SHOW_ATTRIBUTE(kstall_rdma_cq);

static int __init kstall_rdma_cq_init(void)
{
	device = kzalloc(sizeof(*device), GFP_KERNEL);
	cq = kzalloc(sizeof(*cq), GFP_KERNEL);
	if (!device || !cq) {
		kfree(device);
		kfree(cq);
		return -ENOMEM;
	}
	device->ops.poll_cq = poll;
	cq->device = device;
	file = debugfs_create_file("kstall_rdma_cq", 0400, NULL, NULL,
				   &kstall_rdma_cq_fops);
	return 0;
}
module_init(kstall_rdma_cq_init);

static void __exit kstall_rdma_cq_exit(void)
{
	debugfs_remove(file);
	kfree(cq);
	kfree(device);
}
module_exit(kstall_rdma_cq_exit);

MODULE_DESCRIPTION("Count the instructions of a work completion");
MODULE_LICENSE("GPL");
