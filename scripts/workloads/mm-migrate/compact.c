// SPDX-License-Identifier: GPL-2.0-only
/*
 * Have another process compact memory of which this one, which sleeps, has a part,
 * and have it clear the soft-dirty bits of all that this one has, as a checkpoint does.
 *
 * Compaction moves pages from a zone's beginning to free ones at its end.  So that
 * there are both, wherever memory is handed out from, most of it is taken, and one page
 * of KEEP is kept.  A histogram, as documented, sums up what others are kept waiting.
 *
 * usage: compact MIB
 */
#include "mirror.h"

#define KEEP 16

static pid_t compactor(int *go)
{
	pid_t sleeper = getpid();
	char clear_refs[32];
	int ends[2];
	uint64_t began;
	char byte;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		die("pipe2");
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid) {
		close(ends[0]);
		*go = ends[1];
		return pid;
	}
	close(ends[1]);
	if (read(ends[0], &byte, 1) != 1)
		_exit(1);
	began = now();
	put("/proc/sys/vm/compact_memory", "1");
	printf("{\"what\": \"compact\", \"pid\": %d, \"began\": %" PRIu64
	       ", \"ended\": %" PRIu64 "}\n", getpid(), began, now());
	snprintf(clear_refs, sizeof(clear_refs), "/proc/%d/clear_refs", sleeper);
	began = now();
	put(clear_refs, "4");
	printf("{\"what\": \"cleared\", \"tid\": %d, \"began\": %" PRIu64
	       ", \"ended\": %" PRIu64 "}\n", getpid(), began, now());
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	size_t i, pages = argc == 2 ? strtoul(argv[1], NULL, 0) << 8 : 0;
	uint64_t *before, *after;
	bool first = true;
	size_t there = 0;
	uint64_t summed;
	pid_t child;
	char *at;
	int status, go;

	if (!pages) {
		fprintf(stderr, "usage: compact MIB\n");
		return 1;
	}
	/* Before the mirror is opened: it follows a mm, and this is another one. */
	child = compactor(&go);
	/* Nobody else may compact meanwhile. */
	put("/proc/sys/vm/compaction_proactiveness", "0");
	before = calloc(pages, 8);
	after = calloc(pages, 8);
	if (!before || !after)
		die("calloc");
	/* Written to, so that they are not touched first when it counts. */
	memset(before, 1, pages * 8);
	memset(after, 1, pages * 8);
	at = map_pages(pages);
	for (i = 0; i < pages; i += KEEP)
		if (madvise(at + (i + 1) * PAGE, (KEEP - 1) * PAGE, MADV_DONTNEED))
			die("MADV_DONTNEED");
	summed = follow(RECIPE_OTHERS);
	open_mirror(0);
	frames(at, pages, before);
	if (write(go, "", 1) != 1 || waitpid(child, &status, 0) != child || status)
		die("compactor");
	say_sums(summed);
	frames(at, pages, after);

	printf("{\"what\": \"changed\", \"pid\": %d, \"child\": %d, \"addr\": %" PRIuPTR
	       ", \"pages\": %zu, \"at\": [", getpid(), child, (uintptr_t)at, pages);
	for (i = 0; i < pages; i++) {
		there += before[i] != 0;
		if (before[i] == after[i])
			continue;
		printf("%s%zu", first ? "" : ", ", i);
		first = false;
	}
	printf("], \"there\": %zu}\n", there);
	return 0;
}
