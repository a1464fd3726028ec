// SPDX-License-Identifier: GPL-2.0-only
/*
 * Have NUMA balancing look at memory that is mirrored, and call mprotect() on other.
 *
 * One thread on node 0 uses memory of node 1, the only sort that a process with a
 * single thread has scanned.  /proc/vmstat counts the entries that the scan changed.
 * A histogram by stack, as documented, tells the scan from mprotect(); another one is
 * there before.
 */
#include "mirror.h"

#define BALANCING	"/proc/sys/kernel/numa_balancing"
#define SCAN		"/sys/kernel/debug/sched/numa_balancing/"

static unsigned long long vmstat(const char *name)
{
	FILE *file = fopen("/proc/vmstat", "re");
	unsigned long long value;
	char word[64];

	if (!file)
		die("vmstat");
	while (fscanf(file, "%63s %llu", word, &value) == 2)
		if (!strcmp(word, name)) {
			fclose(file);
			return value;
		}
	errno = ENOENT;
	die("vmstat: %s", name);
}

/* Use the pages, in user space, until the scan has changed some. */
static unsigned long long use(volatile char *at, size_t pages, unsigned long long before)
{
	unsigned long long seen;
	size_t i, n;

	do {
		for (n = 0; n < 1000; n++)
			for (i = 0; i < pages; i++)
				at[i * PAGE]++;
		seen = vmstat("numa_pte_updates") - before;
	} while (!seen);
	return seen;
}

int main(void)
{
	size_t pages = 1024;
	unsigned long long before, seen, quiet;
	uint64_t began, ended, summed;
	char *at, *other;
	pid_t child;
	int status;

	if (access(BALANCING, W_OK) || access(SCAN "scan_delay_ms", W_OK))
		skip("no NUMA balancing in this kernel");
	put(BALANCING, "0");
	put(SCAN "scan_delay_ms", "10");
	put(SCAN "scan_period_min_ms", "100");
	fflush(stdout);
	/* It inherits the scan periods of a new process. */
	child = fork();
	if (child < 0)
		die("fork");
	if (child) {
		if (waitpid(child, &status, 0) != child || status)
			exit(1);
		return 0;
	}
	at = map_pages(pages);
	other = map_pages(4);
	summed = follow(RECIPE_OTHERS RECIPE_STACKS);
	open_mirror(0);
	move_to(at, pages, 1);

	began = now();
	before = vmstat("numa_pte_updates");
	if (mprotect(other, 4 * PAGE, PROT_READ))
		die("mprotect");
	quiet = vmstat("numa_pte_updates") - before;
	ended = now();
	printf("{\"what\": \"mprotect\", \"tid\": %d, \"addr\": %" PRIuPTR
	       ", \"pages\": 4, \"updates\": %llu, \"began\": %" PRIu64
	       ", \"ended\": %" PRIu64 "}\n", tid(), (uintptr_t)other, quiet, began, ended);
	fflush(stdout);

	began = now();
	before = vmstat("numa_pte_updates");
	put(BALANCING, "1");
	seen = use(at, pages, before);
	/* A scan that is under way by then runs before this is back in user space. */
	put(BALANCING, "0");
	ended = now();
	printf("{\"what\": \"scan\", \"tid\": %d, \"addr\": %" PRIuPTR
	       ", \"pages\": %zu, \"updates\": %llu, \"began\": %" PRIu64
	       ", \"ended\": %" PRIu64 "}\n", tid(), (uintptr_t)at, pages, seen, began, ended);
	say_sums(summed);
	return 0;
}
