// SPDX-License-Identifier: GPL-2.0-only
/*
 * Invalidate a mirrored range in ways that are no migration, and split a huge page,
 * which unmaps it by the code that migration uses.
 */
#include "mirror.h"

static void did(const char *what, const char *at, size_t pages, uint64_t began)
{
	printf("{\"what\": \"%s\", \"tid\": %d, \"addr\": %" PRIuPTR
	       ", \"pages\": %zu, \"began\": %" PRIu64 ", \"ended\": %" PRIu64 "}\n",
	       what, tid(), (uintptr_t)at, pages, began, now());
}

static void split(void)
{
	char *at = map_huge(), command[96];
	unsigned long before = huge_kb(at);
	uint64_t began;

	snprintf(command, sizeof(command), "%d,0x%lx,0x%lx", getpid(), (uintptr_t)at,
		 (uintptr_t)at + HUGE);
	began = now();
	put("/sys/kernel/debug/split_huge_pages", command);
	did("split", at, 512, began);
	printf("{\"what\": \"huge\", \"kb_before\": %lu, \"kb_after\": %lu}\n", before,
	       huge_kb(at));
}

int main(void)
{
	size_t pages = 16;
	uint64_t began;
	char *at;

	at = map_pages(pages);
	open_mirror(0);

	began = now();
	if (mprotect(at, pages * PAGE, PROT_READ))
		die("mprotect");
	did("mprotect", at, pages, began);

	began = now();
	if (madvise(at, pages * PAGE, MADV_DONTNEED))
		die("MADV_DONTNEED");
	did("dontneed", at, pages, began);

	began = now();
	if (munmap(at, pages * PAGE))
		die("munmap");
	did("munmap", at, pages, began);

	split();
	return 0;
}
