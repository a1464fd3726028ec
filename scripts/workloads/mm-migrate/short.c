// SPDX-License-Identifier: GPL-2.0-only
/*
 * Have device 0 replace a huge page by small ones, of which it has too few, while it can
 * map no more memory.
 *
 * A process uses up a chunk of the device's memory but for a few small pages.  Then it
 * migrates a hole of a huge page's size, and another process a huge page.  The device is
 * told to fail the allocation of a large page, and failslab has it map no more.  Whether
 * the few pages are free afterwards is seen by using them.
 *
 * A kernel that does not expect it ends the process.  To close a mirror migrates back all
 * that is in the device's memory, so each process begins with a chunk of its own.
 */
#include "mirror.h"

#define HMM_DMIRROR_FLAGS	_IOWR('H', 0x08, struct hmm_dmirror_cmd)
#define FAIL_ALLOC	1
#define FAILSLAB	"/sys/kernel/debug/failslab/"
#define CHUNK		(256UL << 20)
#define FEW		100UL
/* What is migrated at once is also copied. */
#define STEP		4096UL

struct done {
	int mapped, error;
	uint64_t pages;
};

static struct shared {
	struct done most, huge, few;
	unsigned long huge_kb;
	size_t wrong;
} *all;

static int mirror;
static char *copy;

static void migrate(char *at, size_t pages, struct done *done)
{
	int before = chunks(), error = 0;
	uint64_t now = 0;
	size_t i, n;

	for (i = 0; i < pages && !error; i += n) {
		n = pages - i < STEP ? pages - i : STEP;
		error = mirror_ioctl(mirror, HMM_DMIRROR_MIGRATE_TO_DEV, at + i * PAGE,
				     copy, n, &now);
		done->pages += now;
	}
	done->error = error;
	done->mapped = chunks() - before;
}

/* Addresses without pages, which will be small ones. */
static char *map_hole(size_t pages)
{
	char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || madvise(at, pages * PAGE, MADV_NOHUGEPAGE))
		die("cannot map %zu pages", pages);
	return at;
}

/* A file that switches failures of this process's slab allocations on and off. */
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

/* May only do what was done before: a failing page fault is repeated without end. */
static void set_failing(int fd, bool on)
{
	if (write(fd, on ? "1" : "0", 1) != 1)
		_exit(2);
}

static void ask_for_huge(bool hole)
{
	int failing, error, before;
	size_t i;
	char *at;

	mirror = open_mirror(0);
	if (mirror_ioctl(mirror, HMM_DMIRROR_RELEASE, copy, copy, 1, NULL))
		die("HMM_DMIRROR_RELEASE");
	migrate(map_hole(CHUNK / PAGE - FEW), CHUNK / PAGE - FEW, &all->most);

	at = map_huge();
	all->huge_kb = huge_kb(at);
	if (hole && madvise(at, HUGE, MADV_DONTNEED))
		die("MADV_DONTNEED");
	if (mirror_ioctl(mirror, HMM_DMIRROR_FLAGS, at, copy, FAIL_ALLOC, NULL))
		die("HMM_DMIRROR_FLAGS");
	before = chunks();
	failing = open_failing();
	set_failing(failing, false);
	set_failing(failing, true);
	error = mirror_ioctl(mirror, HMM_DMIRROR_MIGRATE_TO_DEV, at, copy, HUGE / PAGE,
			     NULL);
	set_failing(failing, false);
	all->huge.error = error;
	all->huge.mapped = chunks() - before;

	migrate(map_hole(FEW), FEW, &all->few);
	for (i = 0; i < HUGE; i++)
		all->wrong += at[i] != !hole;
	_exit(0);
}

static void turn(const char *name, bool hole)
{
	int status;
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
	printf("{\"turn\": \"%s\", \"status\": %d, \"huge_kb\": %lu, \"wrong\": %zu",
	       name, status, all->huge_kb, all->wrong);
	printf(", \"most\": [%d, %d, %" PRIu64 "]", all->most.mapped, all->most.error,
	       all->most.pages);
	printf(", \"huge\": [%d, %d]", all->huge.mapped, all->huge.error);
	printf(", \"few\": [%d, %d, %" PRIu64 "]}\n", all->few.mapped, all->few.error,
	       all->few.pages);
	fflush(stdout);
}

int main(void)
{
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		die("cannot map");
	copy = map_pages(STEP);
	turn("hole", true);
	turn("huge page", false);
	return 0;
}
