// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ask for a huge page that a control group has no room for, by a page fault and by a
 * migration to device 0 of memory that was never touched; then again with room for it.
 * Last, migrate memory that userfaultfd has to supply: the page is charged, and then not
 * inserted.
 *
 * Prints by how much each counter of the kernel grew each time.
 */
#include <linux/userfaultfd.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "mirror.h"

#define ROOT "/sys/fs/cgroup"
#define GROUP ROOT "/kstall-charge"
#define THP "/sys/kernel/mm/transparent_hugepage"
#define MTHP THP "/hugepages-2048kB/stats/"
/* Less than a huge page, and plenty for what a page fault falls back to. */
#define ROOM (1UL << 20)

static const char *const names[] = {
	"thp_fault_alloc", "thp_fault_fallback", "thp_fault_fallback_charge",
	"anon_fault_alloc", "anon_fault_fallback", "anon_fault_fallback_charge",
};
#define COUNT (sizeof(names) / sizeof(*names))

static unsigned long number(const char *path)
{
	FILE *file = fopen(path, "re");
	unsigned long found;

	if (!file || fscanf(file, "%lu", &found) != 1)
		die("%s", path);
	fclose(file);
	return found;
}

static unsigned long vmstat(const char *name)
{
	FILE *file = fopen("/proc/vmstat", "re");
	unsigned long found;
	char key[64];

	while (file && fscanf(file, "%63s %lu", key, &found) == 2)
		if (!strcmp(key, name)) {
			fclose(file);
			return found;
		}
	die("no %s in vmstat", name);
}

static void counters(unsigned long *found)
{
	char path[128];
	size_t i;

	for (i = 0; i < COUNT; i++) {
		snprintf(path, sizeof(path), MTHP "%s", names[i]);
		found[i] = strncmp(names[i], "thp_", 4) ? number(path) : vmstat(names[i]);
	}
}

/* Address space for one huge page, aligned, with nothing mapped yet. */
static char *map_hole(void)
{
	char *at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("cannot map");
	at = (char *)(((uintptr_t)at + HUGE - 1) & ~(HUGE - 1));
	if (madvise(at, HUGE, MADV_HUGEPAGE))
		die("MADV_HUGEPAGE");
	return at;
}

/* Leave the memory to userfaultfd.  Nobody touches it, so that nobody has to wait. */
static void watch(char *at)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register watched = {
		.range = { .start = (uintptr_t)at, .len = HUGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) ||
	    ioctl(faults, UFFDIO_REGISTER, &watched))
		die("userfaultfd");
}

static void turn(const char *how, int mirror, bool room, bool watched)
{
	unsigned long before[COUNT], after[COUNT];
	char *at = map_hole(), *copy = map_pages(512);
	uint64_t done = 0;
	char limit[32];
	int error = 0;
	size_t i;

	snprintf(limit, sizeof(limit), "%lu",
		 number(GROUP "/memory.current") + (room ? 4 * HUGE : ROOM));
	put(GROUP "/memory.max", limit);
	if (watched)
		watch(at);
	counters(before);
	if (mirror < 0)
		*(volatile char *)at = 1;
	else
		error = mirror_ioctl(mirror, HMM_DMIRROR_MIGRATE_TO_DEV, at, copy, 512,
				     &done);
	counters(after);
	put(GROUP "/memory.max", "max");
	printf("{\"how\": \"%s\", \"room\": %s, \"error\": %d, \"done\": %" PRIu64,
	       how, room ? "true" : "false", error, done);
	for (i = 0; i < COUNT; i++)
		printf(", \"%s\": %lu", names[i], after[i] - before[i]);
	printf("}\n");
	fflush(stdout);
}

int main(void)
{
	int mirror = open_mirror(0);

	if (access(ROOT "/cgroup.controllers", F_OK) &&
	    mount("none", ROOT, "cgroup2", 0, NULL))
		die("cannot mount " ROOT);
	put(ROOT "/cgroup.subtree_control", "+memory");
	if (mkdir(GROUP, 0755) && errno != EEXIST)
		die(GROUP);
	put(GROUP "/cgroup.procs", "0");
	/* So that no page fault of another process is counted. */
	put(THP "/enabled", "madvise");

	turn("fault", -1, false, false);
	turn("device", mirror, false, false);
	turn("fault", -1, true, false);
	turn("device", mirror, true, false);
	turn("userfaultfd", mirror, true, true);

	put(ROOT "/cgroup.procs", "0");
	if (rmdir(GROUP))
		die(GROUP);
	return 0;
}
