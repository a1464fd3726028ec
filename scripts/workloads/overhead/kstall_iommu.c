// SPDX-License-Identifier: GPL-2.0-only
/*
 * What it takes to map a page for a device behind an IOMMU and to unmap it again
 */
#include "measure-module.h"
#include <linux/dma-mapping.h>
#include <linux/pci.h>

#define PAIRS 64

static struct pci_dev *edu;
static struct dentry *file;
static void *page;

static u64 repetition(void)
{
	u64 before = instructions();
	unsigned int i;

	for (i = 0; i < PAIRS; i++) {
		dma_addr_t at = dma_map_single(&edu->dev, page, PAGE_SIZE, DMA_TO_DEVICE);

		if (dma_mapping_error(&edu->dev, at))
			return 0;
		dma_unmap_single(&edu->dev, at, PAGE_SIZE, DMA_TO_DEVICE);
	}
	return instructions() - before;
}

static int kstall_iommu_show(struct seq_file *seq, void *unused)
{
	return measure(seq, PAIRS, repetition);
}
DEFINE_SHOW_ATTRIBUTE(kstall_iommu);

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
	file = debugfs_create_file("kstall_iommu", 0400, NULL, NULL, &kstall_iommu_fops);
	return 0;
}
module_init(kstall_iommu_init);

static void __exit kstall_iommu_exit(void)
{
	debugfs_remove(file);
	free_page((unsigned long)page);
	pci_dev_put(edu);
}
module_exit(kstall_iommu_exit);

MODULE_DESCRIPTION("Count the instructions of mapping and unmapping a page");
MODULE_LICENSE("GPL");
