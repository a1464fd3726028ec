// SPDX-License-Identifier: GPL-2.0-only
/*
 * mm-migrate - change the protection of a page, and count instructions
 *
 * usage: mm-migrate none | mirror
 *
 * With a mirror of test_hmm the address space has a subscriber, which each mprotect()
 * of a mapped page calls once.  Without, there is nobody to call.
 */
#define _GNU_SOURCE
#include "measure.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static void protect(void *page)
{
	static int writable = PROT_WRITE;

	writable ^= PROT_WRITE;
	if (mprotect(page, 4096, PROT_READ | writable))
		die("mprotect");
}

int main(int argc, char **argv)
{
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		die("mmap");
	*page = 1;
	if (argc != 2) {
		fprintf(stderr, "usage: mm-migrate none | mirror\n");
		return 1;
	}
	if (!strcmp(argv[1], "mirror") && open("/dev/hmm_dmirror0", O_RDWR) < 0)
		die("/dev/hmm_dmirror0");
	measure(100, protect, page);
	return 0;
}
