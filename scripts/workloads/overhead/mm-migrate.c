// SPDX-License-Identifier: GPL-2.0-only
/*
 * mm-migrate - change the protection of a page, or move it, and count instructions
 *
 * usage: mm-migrate none | mirror | move
 *
 * With a mirror of test_hmm the address space has a subscriber, which each mprotect()
 * of a mapped page calls once.  Without, there is nobody to call.  move_pages() takes
 * the page from one node to the other, and nobody is called either.
 */
#define _GNU_SOURCE
#include "measure.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void protect(void *page)
{
	static int writable = PROT_WRITE;

	writable ^= PROT_WRITE;
	if (mprotect(page, 4096, PROT_READ | writable))
		die("mprotect");
}

static void move(void *page)
{
	static int node;
	int status;

	node = !node;
	/* MPOL_MF_MOVE is 2 */
	if (syscall(SYS_move_pages, 0, 1UL, &page, &node, &status, 2) || status != node)
		die("move_pages");
}

int main(int argc, char **argv)
{
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		die("mmap");
	*page = 1;
	if (argc != 2) {
		fprintf(stderr, "usage: mm-migrate none | mirror | move\n");
		return 1;
	}
	if (!strcmp(argv[1], "mirror") && open("/dev/hmm_dmirror0", O_RDWR) < 0)
		die("/dev/hmm_dmirror0");
	if (!strcmp(argv[1], "move"))
		measure(20, move, page);
	else
		measure(100, protect, page);
	return 0;
}
