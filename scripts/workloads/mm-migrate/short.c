// SPDX-License-Identifier: GPL-2.0-only
/*
 * Have device 0 replace a huge page by small ones, of which it has too few, while it can
 * map no more memory.
 *
 * The device's first chunk of memory is used up but for a few small pages.  A process
 * then migrates a hole of a huge page's size, and another one a huge page.  The device is
 * told to fail the allocation of a large page, and failslab has it map no more.  Whether
 * the few pages are free afterwards is seen by using them.
 *
 * Those two are processes of their own, as a kernel that does not expect it ends them.
 */
#include "mirror.h"

#define HMM_DMIRROR_FLAGS	_IOWR('H', 0x08, struct hmm_dmirror_cmd)
#define FAIL_ALLOC	1
#define FAILSLAB	"/sys/kernel/debug/failslab/"
#define CHUNK		(256UL << 20)
#define FEW		100UL
/* What is migrated at once is copied, too. */
#define STEP		4096UL

static struct shared {
	int error;
	unsigned long huge_kb;
	size_t wrong;
} *all;

static int mirror;
static char *copy;

/* Addresses without pages, which will be small ones. */
static char *map_hole(size_t pages)
{
	char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || madvise(at, pages * PAGE, MADV_NOHUGEPAGE) ||
	    madvise(at, pages * PAGE, MADV_DONTFORK))
		die("cannot map %zu pages", pages);
	return at;
}

static void migrate(const char *name, size_t pages)
{
	char *at = map_hole(pages);
	int before = chunks(), error = 0;
	uint64_t done, sum = 0;
	size_t i, n;

	for (i = 0; i < pages && !error; i += n) {
		n = pages - i < STEP ? pages - i : STEP;
		error = mirror_ioctl(mirror, HMM_DMIRROR_MIGRATE_TO_DEV, at + i * PAGE,
				     copy, n, &done);
		sum += done;
	}
	printf("{\"turn\": \"%s\", \"mapped\": %d, \"error\": %d, \"pages\": %" PRIu64
	       "}\n", name, chunks() - before, error, sum);
	fflush(stdout);
}

/*
 * A file by which slab allocations of this process fail or not.  As long as they do, it
 * may only do what it has done before: a page fault could be repeated without end.
 */
static int open_failing(void)
{
	int fd = open("/proc/self/make-it-fail", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		die("make-it-fail");
	put(FAILSLAB "verbose", "0");
	put(FAILSLAB "interval", "1");
	put(FAILSLAB "space", "0");
	put(FAILSLAB "times", "-1");
	put(FAILSLAB "task-filter", "Y");
	put(FAILSLAB "ignore-gfp-wait", "N");
	put(FAILSLAB "probability", "100");
	return fd;
}

static void set_failing(int fd, bool on)
{
	if (write(fd, on ? "1" : "0", 1) != 1)
		_exit(2);
}

static void ask_for_huge(bool hole)
{
	size_t i, pages = HUGE / PAGE;
	char *at = map_huge();
	int fd = open_mirror(0), failing, error;

	all->huge_kb = huge_kb(at);
	if (hole && madvise(at, HUGE, MADV_DONTNEED))
		die("MADV_DONTNEED");
	if (mirror_ioctl(fd, HMM_DMIRROR_FLAGS, at, copy, FAIL_ALLOC, NULL))
		die("HMM_DMIRROR_FLAGS");
	failing = open_failing();
	set_failing(failing, false);
	set_failing(failing, true);
	error = mirror_ioctl(fd, HMM_DMIRROR_MIGRATE_TO_DEV, at, copy, pages, NULL);
	set_failing(failing, false);
	all->error = error;
	for (i = 0; !hole && i < HUGE; i++)
		all->wrong += at[i] != 1;
	_exit(0);
}

static void turn(const char *name, bool hole)
{
	int before = chunks(), status;
	pid_t pid;

	memset(all, 0, sizeof(*all));
	pid = fork();
	if (pid < 0)
		die("fork");
	if (!pid)
		ask_for_huge(hole);
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	put(FAILSLAB "probability", "0");
	put(FAILSLAB "task-filter", "N");
	put(FAILSLAB "ignore-gfp-wait", "Y");
	printf("{\"turn\": \"%s\", \"status\": %d, \"mapped\": %d, \"error\": %d, "
	       "\"huge_kb\": %lu, \"wrong\": %zu}\n",
	       name, status, chunks() - before, all->error, all->huge_kb, all->wrong);
	fflush(stdout);
}

int main(void)
{
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		die("cannot map");
	mirror = open_mirror(0);
	copy = map_pages(STEP);
	if (mirror_ioctl(mirror, HMM_DMIRROR_RELEASE, copy, copy, 1, NULL))
		die("HMM_DMIRROR_RELEASE");
	migrate("all but a few", CHUNK / PAGE - FEW);
	turn("hole", true);
	turn("huge page", false);
	migrate("the few", FEW);
	return 0;
}
