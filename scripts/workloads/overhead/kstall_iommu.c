// SPDX-License-Identifier: GPL-2.0-only
/*
 * What it takes to map a page for a device behind an IOMMU and to unmap it again
 *
 * kstall_iommu		one of many times
 * kstall_iommu_full	the time that finds the flush queue full, which a lazy domain has;
 *			filling the queue is not counted
 */
#include "measure-module.h"
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/pci.h>

#define PAIRS 64

/* How many entries a CPU's flush queue holds, and what is longer than they may wait. */
#define QUEUED 255
#define FLUSHED_MS 20

static struct pci_dev *edu;
static struct dentry *files[2];
static void *page;

static bool map_and_unmap(unsigned int pairs)
{
	while (pairs--) {
		dma_addr_t at = dma_map_single(&edu->dev, page, PAGE_SIZE, DMA_TO_DEVICE);

		if (dma_mapping_error(&edu->dev, at))
			return false;
		dma_unmap_single(&edu->dev, at, PAGE_SIZE, DMA_TO_DEVICE);
	}
	return true;
}

static u64 repetition(void)
{
	u64 before = instructions();

	return map_and_unmap(PAIRS) ? instructions() - before : 0;
}

static u64 fill_and_flush(void)
{
	u64 before;

	/* The timer empties the queue, so that each repetition begins with none in it. */
	msleep(FLUSHED_MS);
	if (!map_and_unmap(QUEUED))
		return 0;
	before = instructions();
	return map_and_unmap(1) ? instructions() - before : 0;
}

static int kstall_iommu_show(struct seq_file *seq, void *unused)
{
	return measure(seq, PAIRS, repetition);
}
DEFINE_SHOW_ATTRIBUTE(kstall_iommu);

static int kstall_iommu_full_show(struct seq_file *seq, void *unused)
{
	return measure(seq, 1, fill_and_flush);
}
DEFINE_SHOW_ATTRIBUTE(kstall_iommu_full);

static int __init kstall_iommu_init(void)
{
	/* QEMU's educational device, which no driver takes. */
	edu = pci_get_device(0x1234, 0x11e8, NULL);
	if (!edu)
		return -ENODEV;
	page = (void *)get_zeroed_page(GFP_KERNEL);
	if (!page) {
		pci_dev_put(edu);
		return -ENOMEM;
	}
	files[0] = debugfs_create_file("kstall_iommu", 0400, NULL, NULL,
				       &kstall_iommu_fops);
	files[1] = debugfs_create_file("kstall_iommu_full", 0400, NULL, NULL,
				       &kstall_iommu_full_fops);
	return 0;
}
module_init(kstall_iommu_init);

static void __exit kstall_iommu_exit(void)
{
	debugfs_remove(files[0]);
	debugfs_remove(files[1]);
	free_page((unsigned long)page);
	pci_dev_put(edu);
}
module_exit(kstall_iommu_exit);

MODULE_DESCRIPTION("Count the instructions of mapping and unmapping a page");
MODULE_LICENSE("GPL");
