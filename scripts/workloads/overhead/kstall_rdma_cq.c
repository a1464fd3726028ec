// SPDX-License-Identifier: GPL-2.0-only
/*
 * What ib_core executes for work completions and for events of a CQ and of a QP
 *
 * The device is a dummy, which is never registered: it hands out prepared completions,
 * and reports an event as drivers do.
 *
 * kstall_rdma_cq		a successful completion, one of many
 * kstall_rdma_cq_failed	a failed completion, the only one that a poll finds
 * kstall_rdma_cq_event		an event of the CQ, and a poll that finds nothing
 * kstall_rdma_qp_event		an event of the QP, and a poll that finds nothing
 */
#include "measure-module.h"
#include <rdma/ib_verbs.h>

#define COMPLETIONS 1024
#define EVENTS 64

struct dummy_device {
	struct ib_device ibdev;
};

struct dummy_cq {
	struct ib_cq ibcq;
};

struct dummy_pd {
	struct ib_pd ibpd;
};

struct dummy_qp {
	struct ib_qp ibqp;
};

static struct dummy_device *device;
static struct ib_cq *cq;
static struct ib_pd *pd;
static struct ib_qp *qp;
static struct dentry *files[4];

/* What the next polls find. */
static unsigned int left;
static enum ib_wc_status status;

static void done(struct ib_cq *queue, struct ib_wc *wc)
{
}

static struct ib_cqe cqe = { .done = done };

static int dummy_create_cq(struct ib_cq *queue, const struct ib_cq_init_attr *attr,
			   struct uverbs_attr_bundle *attrs)
{
	queue->cqe = attr->cqe;
	return 0;
}

static int dummy_destroy_cq(struct ib_cq *queue, struct ib_udata *udata)
{
	return 0;
}

static int dummy_poll_cq(struct ib_cq *queue, int count, struct ib_wc *wc)
{
	int i;

	for (i = 0; i < count && left; i++, left--) {
		wc[i].wr_cqe = &cqe;
		wc[i].status = status;
	}
	return i;
}

static int dummy_alloc_pd(struct ib_pd *domain, struct ib_udata *udata)
{
	return 0;
}

static int dummy_dealloc_pd(struct ib_pd *domain, struct ib_udata *udata)
{
	return 0;
}

static int dummy_create_qp(struct ib_qp *pair, struct ib_qp_init_attr *attr,
			   struct ib_udata *udata)
{
	pair->qp_num = 0x57;
	return 0;
}

static int dummy_destroy_qp(struct ib_qp *pair, struct ib_udata *udata)
{
	return 0;
}

static const struct ib_device_ops dummy_ops = {
	.owner = THIS_MODULE,
	.create_cq = dummy_create_cq,
	.destroy_cq = dummy_destroy_cq,
	.poll_cq = dummy_poll_cq,
	.alloc_pd = dummy_alloc_pd,
	.dealloc_pd = dummy_dealloc_pd,
	.create_qp = dummy_create_qp,
	.destroy_qp = dummy_destroy_qp,

	INIT_RDMA_OBJ_SIZE(ib_cq, dummy_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_pd, dummy_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_qp, dummy_qp, ibqp),
};

static u64 succeed(void)
{
	u64 before;

	left = COMPLETIONS;
	status = IB_WC_SUCCESS;
	before = instructions();
	ib_process_cq_direct(cq, COMPLETIONS);
	return instructions() - before;
}

static u64 fail(void)
{
	u64 before;
	unsigned int i;

	status = IB_WC_WR_FLUSH_ERR;
	before = instructions();
	for (i = 0; i < EVENTS; i++) {
		left = 1;
		ib_process_cq_direct(cq, 1);
	}
	return instructions() - before;
}

/* Kernels differ in whether a CQ of the kernel has a handler. */
static u64 report_cq(void)
{
	u64 before = instructions();
	unsigned int i;

	for (i = 0; i < EVENTS; i++) {
		struct ib_event event = {
			.device = cq->device,
			.element.cq = cq,
			.event = IB_EVENT_CQ_ERR,
		};

		if (cq->event_handler)
			cq->event_handler(&event, cq->cq_context);
		ib_process_cq_direct(cq, 1);
	}
	return instructions() - before;
}

static u64 report_qp(void)
{
	u64 before = instructions();
	unsigned int i;

	for (i = 0; i < EVENTS; i++) {
		struct ib_event event = {
			.device = qp->device,
			.element.qp = qp,
			.event = IB_EVENT_QP_FATAL,
		};

		qp->event_handler(&event, qp->qp_context);
		ib_process_cq_direct(cq, 1);
	}
	return instructions() - before;
}

static int kstall_rdma_cq_show(struct seq_file *seq, void *unused)
{
	return measure(seq, COMPLETIONS, succeed);
}
DEFINE_SHOW_ATTRIBUTE(kstall_rdma_cq);

static int kstall_rdma_cq_failed_show(struct seq_file *seq, void *unused)
{
	return measure(seq, EVENTS, fail);
}
DEFINE_SHOW_ATTRIBUTE(kstall_rdma_cq_failed);

static int kstall_rdma_cq_event_show(struct seq_file *seq, void *unused)
{
	return measure(seq, EVENTS, report_cq);
}
DEFINE_SHOW_ATTRIBUTE(kstall_rdma_cq_event);

static int kstall_rdma_qp_event_show(struct seq_file *seq, void *unused)
{
	return measure(seq, EVENTS, report_qp);
}
DEFINE_SHOW_ATTRIBUTE(kstall_rdma_qp_event);

static int __init kstall_rdma_cq_init(void)
{
	struct ib_qp_init_attr attr = { .qp_type = IB_QPT_RC };
	int ret;

	device = ib_alloc_device(dummy_device, ibdev);
	if (!device)
		return -ENOMEM;
	/* What registration would do. */
	strscpy(device->ibdev.name, "kstall0");
	device->ibdev.attrs.kernel_cap_flags = IBK_LOCAL_DMA_LKEY;
	ib_set_device_ops(&device->ibdev, &dummy_ops);

	cq = ib_alloc_cq(&device->ibdev, NULL, 16, 0, IB_POLL_DIRECT);
	if (IS_ERR(cq)) {
		ret = PTR_ERR(cq);
		goto dealloc_device;
	}
	pd = ib_alloc_pd(&device->ibdev, 0);
	if (IS_ERR(pd)) {
		ret = PTR_ERR(pd);
		goto free_cq;
	}
	attr.send_cq = cq;
	attr.recv_cq = cq;
	qp = ib_create_qp(pd, &attr);
	if (IS_ERR(qp)) {
		ret = PTR_ERR(qp);
		goto dealloc_pd;
	}
	files[0] = debugfs_create_file("kstall_rdma_cq", 0400, NULL, NULL,
				       &kstall_rdma_cq_fops);
	files[1] = debugfs_create_file("kstall_rdma_cq_failed", 0400, NULL, NULL,
				       &kstall_rdma_cq_failed_fops);
	files[2] = debugfs_create_file("kstall_rdma_cq_event", 0400, NULL, NULL,
				       &kstall_rdma_cq_event_fops);
	files[3] = debugfs_create_file("kstall_rdma_qp_event", 0400, NULL, NULL,
				       &kstall_rdma_qp_event_fops);
	return 0;
dealloc_pd:
	ib_dealloc_pd(pd);
free_cq:
	ib_free_cq(cq);
dealloc_device:
	ib_dealloc_device(&device->ibdev);
	return ret;
}
module_init(kstall_rdma_cq_init);

static void __exit kstall_rdma_cq_exit(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(files); i++)
		debugfs_remove(files[i]);
	ib_destroy_qp(qp);
	ib_dealloc_pd(pd);
	ib_free_cq(cq);
	ib_dealloc_device(&device->ibdev);
}
module_exit(kstall_rdma_cq_exit);

MODULE_DESCRIPTION("Count the instructions of work completions and of events");
MODULE_LICENSE("GPL");
