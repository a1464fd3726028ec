/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the workloads share: test_hmm's mirrors, pages, clocks, and how to print what
 * was done.
 *
 * Each program prints one JSON object a line: "what" was done, with what it saw
 * itself.  Times are CLOCK_MONOTONIC in ns, addresses are decimal.  A program that
 * cannot do its work exits 1 and says why on stderr; one that finds that this machine
 * cannot, prints {"what": "skip", "why": ...} and exits 0.  Waits have no limit: the agent
 * ends a program that takes too long, and knows how much time the host gave.
 */
#ifndef MIRROR_H
#define MIRROR_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE	4096UL
#define HUGE	(512 * PAGE)
#define MS	1000000ULL
#define MOST	1024

/* lib/test_hmm_uapi.h, which is private to the kernel's tree */
struct hmm_dmirror_cmd {
	uint64_t addr;
	uint64_t ptr;
	uint64_t npages;
	uint64_t cpages;
	uint64_t faults;
};

#define HMM_DMIRROR_READ		_IOWR('H', 0x00, struct hmm_dmirror_cmd)
#define HMM_DMIRROR_MIGRATE_TO_DEV	_IOWR('H', 0x02, struct hmm_dmirror_cmd)
#define HMM_DMIRROR_RELEASE		_IOWR('H', 0x07, struct hmm_dmirror_cmd)

#define MPOL_MF_MOVE 2

#define DELAY_PARAMETER "/sys/module/test_hmm/parameters/invalidate_delay_ms"
#define PASSES_PARAMETER "/sys/module/test_hmm/parameters/invalidate_passes"
#define HOLD_PARAMETER "/sys/module/test_hmm/parameters/invalidate_hold"

__attribute__((noreturn, format(printf, 1, 2)))
static inline void die(const char *format, ...)
{
	int error = errno;
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, " (%s)\n", strerror(error));
	exit(1);
}

static inline uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static inline void nap(uint64_t ns)
{
	struct timespec t = { ns / 1000000000, ns % 1000000000 };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static inline pid_t tid(void)
{
	return syscall(SYS_gettid);
}

static inline void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_TRUNC);

	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		die("%s: cannot write %s", path, text);
	close(fd);
}

/* An ftrace instance for recipes only; the workload's tracers have another. */
#define OWN_TRACE	"/sys/kernel/tracing/instances/mm-migrate-own/"
#define CALLBACK_END	"events/mmu_notifier/mmu_notifier_callback_end/"
#define OWN_EVENT	OWN_TRACE CALLBACK_END

/*
 * What Documentation/mm/mmu_notifier.rst says to type in the event's directory, line by
 * line; a test compares these with it.
 */
#define RECIPE_LONG \
	"echo 'duration_ns > 10000000' > filter\n" \
	"echo 1 > enable\n"
#define RECIPE_OTHERS \
	"who='curr == 0 && (event != 0 && event != 5 || end != 0xffffffffffffffff)'\n" \
	"echo \"hist:keys=function.sym,event:vals=duration_ns if $who\" >> trigger\n"
#define RECIPE_STACKS \
	"echo 'hist:keys=function.sym,common_stacktrace' >> trigger\n"

/*
 * Have a shell run it; returns when that was done.  On a kernel without the event it
 * cannot be followed, which is 0.  Not while there is a mirror, as a shell that starts
 * has memory invalidated.
 */
static inline uint64_t follow(const char *recipe)
{
	char commands[512];

	if (access("/sys/kernel/tracing/" CALLBACK_END, F_OK))
		return 0;
	if (mkdir(OWN_TRACE, 0700))
		die(OWN_TRACE);
	snprintf(commands, sizeof(commands), "set -e; cd %s\n%s", OWN_EVENT, recipe);
	if (system(commands))
		die("%s", commands);
	return now();
}

/* Print the histogram, a line at a time, and the times between which it was read. */
static inline void say_sums(uint64_t began)
{
	uint64_t read, ended;
	char line[1024];
	FILE *hist;
	int fd;

	if (!began)
		return;
	hist = fopen(OWN_EVENT "hist", "re");
	if (!hist)
		die("hist");
	read = now();
	while (fgets(line, sizeof(line), hist)) {
		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, "# trigger info: ", 16))
			printf("{\"what\": \"trigger\", \"line\": \"%s\"}\n", line + 16);
		else if (line[0] && line[0] != '#')
			printf("{\"what\": \"hist\", \"line\": \"%s\"}\n", line);
	}
	ended = now();
	fclose(hist);
	printf("{\"what\": \"sums\", \"began\": %" PRIu64 ", \"read\": %" PRIu64
	       ", \"ended\": %" PRIu64 "}\n", began, read, ended);
	fflush(stdout);
	/* Opening it with O_TRUNC removes the triggers. */
	fd = open(OWN_EVENT "trigger", O_WRONLY | O_TRUNC | O_CLOEXEC);
	if (fd < 0)
		die("trigger");
	close(fd);
	if (rmdir(OWN_TRACE))
		die("rmdir");
}

/* Print range and duration of each record, and when reading them began. */
static inline void say_records(uint64_t began)
{
	uint64_t start, duration, read;
	char line[1024], *at, *after;
	FILE *trace;

	if (!began)
		return;
	trace = fopen(OWN_TRACE "trace", "re");
	if (!trace)
		die("trace");
	read = now();
	while (fgets(line, sizeof(line), trace)) {
		if (line[0] == '#')
			continue;
		at = strstr(line, " start=");
		after = strstr(line, " duration_ns=");
		if (!at || !after)
			die("a record without start or duration_ns: %s", line);
		start = strtoull(at + 7, NULL, 0);
		duration = strtoull(after + 13, NULL, 10);
		printf("{\"what\": \"record\", \"start\": %" PRIu64
		       ", \"duration_ns\": %" PRIu64 "}\n", start, duration);
	}
	fclose(trace);
	printf("{\"what\": \"records\", \"began\": %" PRIu64 ", \"read\": %" PRIu64
	       "}\n", began, read);
	fflush(stdout);
	put(OWN_EVENT "enable", "0");
	if (rmdir(OWN_TRACE))
		die("rmdir");
}

/* A mirror of this process by device 0 or 1, with a subscription to its mm. */
static inline int open_mirror(int device)
{
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/dev/hmm_dmirror%d", device);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		die("%s", path);
	return fd;
}

/* The errno of a mirror's ioctl, or 0. */
static inline int mirror_ioctl(int fd, unsigned long request, void *addr, void *copy,
			       size_t pages, uint64_t *done)
{
	struct hmm_dmirror_cmd cmd = {
		.addr = (uintptr_t)addr,
		.ptr = (uintptr_t)copy,
		.npages = pages,
	};
	int error = ioctl(fd, request, &cmd) ? errno : 0;

	if (done)
		*done = cmd.cpages;
	return error;
}

/* Pieces of device memory that are mapped, of both devices. */
static inline int chunks(void)
{
	FILE *file = fopen("/proc/iomem", "re");
	char line[256];
	int found = 0;

	if (!file)
		die("iomem");
	while (fgets(line, sizeof(line), file))
		found += !!strstr(line, "hmm_dmirror");
	fclose(file);
	return found;
}

/* Whether a thread moves pages, and the callback of a slow mirror delays that. */
static inline bool delayed(int tid)
{
	char path[64], call[256] = "", where[256] = "";
	int number = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	file = fopen(path, "re");
	if (file && fgets(call, sizeof(call), file))
		sscanf(call, "%d", &number);
	if (file)
		fclose(file);
	snprintf(path, sizeof(path), "/proc/self/task/%d/wchan", tid);
	file = fopen(path, "re");
	if (file && !fgets(where, sizeof(where), file))
		where[0] = '\0';
	if (file)
		fclose(file);
	return number == SYS_move_pages && !strncmp(where, "dmirror_", 8);
}

/* Present pages of this process, each in a folio of its own. */
static inline char *map_pages(size_t pages)
{
	char *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || madvise(at, pages * PAGE, MADV_NOHUGEPAGE))
		die("cannot map %zu pages", pages);
	memset(at, 1, pages * PAGE);
	return at;
}

/* One huge page; smaps has to agree that it is one. */
static inline char *map_huge(void)
{
	char *at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("cannot map");
	at = (char *)(((uintptr_t)at + HUGE - 1) & ~(HUGE - 1));
	if (madvise(at, HUGE, MADV_HUGEPAGE))
		die("MADV_HUGEPAGE");
	memset(at, 1, HUGE);
	return at;
}

/* kB of anonymous huge pages in the mapping that begins at `at`. */
static inline unsigned long huge_kb(const void *at)
{
	FILE *smaps = fopen("/proc/self/smaps", "re");
	unsigned long kb = 0, low, high;
	bool here = false;
	char line[512];

	if (!smaps)
		die("smaps");
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
			here = low <= (uintptr_t)at && (uintptr_t)at < high;
		else if (here)
			sscanf(line, "AnonHugePages: %lu kB", &kb);
	}
	fclose(smaps);
	return kb;
}

/* Page frame numbers, 0 for a page that is not there. */
static inline void frames(const char *at, size_t pages, uint64_t *pfn)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	size_t i;

	if (fd < 0 || pread(fd, pfn, pages * 8, (uintptr_t)at / PAGE * 8) !=
		      (ssize_t)(pages * 8))
		die("pagemap");
	close(fd);
	for (i = 0; i < pages; i++)
		pfn[i] = pfn[i] >> 63 ? pfn[i] & ((1ULL << 55) - 1) : 0;
}

struct moved {
	uint64_t began, ended;	/* around the system call */
	long result;		/* of it: pages not moved, or -errno */
	size_t there;		/* pages whose status is the node asked for */
	size_t changed;		/* pages whose frame is another than before */
};

/*
 * move_pages() of `pages` pages from `at` on to `node`.  One thread at a time, and
 * nothing is allocated: that would be invalidations of its own.
 */
static inline struct moved move_to(char *at, size_t pages, int node)
{
	static uint64_t before[MOST], after[MOST];
	static int nodes[MOST], status[MOST];
	static void *list[MOST];
	struct moved m = { 0 };
	size_t i;

	if (pages > MOST) {
		errno = E2BIG;
		die("%zu pages", pages);
	}
	for (i = 0; i < pages; i++) {
		list[i] = at + i * PAGE;
		nodes[i] = node;
		status[i] = -1;
	}
	frames(at, pages, before);
	m.began = now();
	m.result = syscall(SYS_move_pages, 0, pages, list, nodes, status,
			   MPOL_MF_MOVE);
	if (m.result < 0)
		m.result = -errno;
	m.ended = now();
	frames(at, pages, after);
	for (i = 0; i < pages; i++) {
		m.there += status[i] == node;
		m.changed += before[i] != after[i];
	}
	return m;
}

static inline void say_moved(const char *what, const char *at, size_t pages, int node,
			     const struct moved *m)
{
	printf("{\"what\": \"%s\", \"pid\": %d, \"tid\": %d, \"addr\": %" PRIuPTR ", "
	       "\"pages\": %zu, \"node\": %d, \"result\": %ld, \"moved\": %zu, "
	       "\"changed\": %zu, \"began\": %" PRIu64 ", \"ended\": %" PRIu64 "}\n",
	       what, getpid(), tid(), (uintptr_t)at, pages, node, m->result, m->there,
	       m->changed, m->began, m->ended);
	fflush(stdout);
}

static inline void skip(const char *why)
{
	printf("{\"what\": \"skip\", \"why\": \"%s\"}\n", why);
	exit(0);
}

/* A thread that moves one page once it may; `tid` is 0 until it runs. */
struct mover {
	char *page;
	int node;
	atomic_int tid, go;
	struct moved moved;
};

static inline void *mover(void *argument)
{
	struct mover *m = argument;

	atomic_store(&m->tid, tid());
	while (!atomic_load(&m->go))
		nap(1 * MS);
	m->moved = move_to(m->page, 1, m->node);
	return NULL;
}

#endif
