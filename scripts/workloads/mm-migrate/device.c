// SPDX-License-Identifier: GPL-2.0-only
/*
 * Migrate pages to the memory of device 0, which two devices mirror, and touch them,
 * which brings each of them back.  Then do so again, and close the mirror of device 0,
 * which evicts them.
 *
 * usage: device PAGES
 */
#include "mirror.h"

int main(int argc, char **argv)
{
	size_t i, pages = argc == 2 ? strtoul(argv[1], NULL, 0) : 0;
	uint64_t began, ended, done, pfn[512];
	size_t gone = 0, there = 0;
	char *at, *copy;
	int mirror, error;

	if (!pages || pages > 512) {
		fprintf(stderr, "usage: device PAGES\n");
		return 1;
	}
	at = map_pages(pages);
	copy = map_pages(pages);
	mirror = open_mirror(0);
	open_mirror(1);

	began = now();
	error = mirror_ioctl(mirror, HMM_DMIRROR_MIGRATE_TO_DEV, at, copy, pages, &done);
	ended = now();
	printf("{\"what\": \"to_device\", \"tid\": %d, \"addr\": %" PRIuPTR
	       ", \"pages\": %zu, \"error\": %d, \"done\": %" PRIu64
	       ", \"began\": %" PRIu64 ", \"ended\": %" PRIu64 "}\n",
	       tid(), (uintptr_t)at, pages, error, done, began, ended);

	began = now();
	for (i = 0; i < pages; i++)
		if (*(volatile char *)(at + i * PAGE) != 1)
			die("page %zu came back as another", i);
	printf("{\"what\": \"to_system\", \"tid\": %d, \"addr\": %" PRIuPTR
	       ", \"pages\": %zu, \"began\": %" PRIu64 ", \"ended\": %" PRIu64 "}\n",
	       tid(), (uintptr_t)at, pages, began, now());

	error = mirror_ioctl(mirror, HMM_DMIRROR_MIGRATE_TO_DEV, at, copy, pages, &done);
	if (error || done != pages)
		die("%" PRIu64 " pages went to the device again", done);
	frames(at, pages, pfn);
	for (i = 0; i < pages; i++)
		gone += !pfn[i];
	began = now();
	close(mirror);
	ended = now();
	frames(at, pages, pfn);
	for (i = 0; i < pages; i++) {
		there += !!pfn[i];
		if (*(volatile char *)(at + i * PAGE) != 1)
			die("page %zu was evicted as another", i);
	}
	printf("{\"what\": \"evict\", \"tid\": %d, \"addr\": %" PRIuPTR
	       ", \"pages\": %zu, \"gone\": %zu, \"there\": %zu, \"began\": %" PRIu64
	       ", \"ended\": %" PRIu64 "}\n",
	       tid(), (uintptr_t)at, pages, gone, there, began, ended);
	return 0;
}
