// SPDX-License-Identifier: GPL-2.0-only
/*
 * Have device 0 map more memory while a processor is taken offline, which waits for a
 * task that reads a counter into memory that is not there yet.
 *
 * To read a perf event takes its context's mutex, and perf takes that when a processor
 * goes offline.  The buffer lies across two pages: userfaultfd supplies the first one
 * when all others are where they should be, and the second one needs mmap_lock, for which
 * a mmap() is queued.  Their stacks show whether they then wait for each other.  If so,
 * the reader is killed, which ends that.
 *
 * Four tasks take part: a thread with the ioctl, a thread with the mmap(), a reader that
 * shares the memory of this process but is killed alone, and a process that takes the
 * processor offline.  A fifth one, a process, watches them: it must not need what they
 * hold.
 *
 * No wait has a limit, see mirror.h.
 */
#include "mirror.h"

#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>

#define ONLINE		"/sys/devices/system/cpu/cpu1/online"
#define PAGES		16
/* Of value, times and id, half of it in each page. */
#define READ_SIZE	32
#define POLL_NS		(20 * MS)
/* How many looks in a row have to find all of them waiting. */
#define LOOKS		25

enum { IOCTL, MMAP, READ, OFFLINE, WATCH, ACTORS };

/*
 * The function that takes the lock that each waits for: lock functions themselves are
 * left out of /proc/PID/stack, as is all of a thread that runs.
 */
static const char *const waits[] = {
	[IOCTL] = "cpus_read_lock",
	[MMAP] = "vm_mmap_pgoff",
	[READ] = "lock_mm_and_find_vma",
	[OFFLINE] = "perf_event_exit_cpu",
};
static const char *const names[] = { "ioctl", "mmap", "read", "offline" };

static struct shared {
	atomic_int tid[ACTORS], go[ACTORS], done[ACTORS];
	/* Of the ioctl. */
	int error;
	uint64_t pages;
	int offline_error;
	atomic_int deadlock;
} *all;

static int mirror, counter, faults;
static char *memory, *copy, *buffer;

static void wait_for_go(int actor)
{
	atomic_store(&all->tid[actor], tid());
	while (!atomic_load(&all->go[actor]))
		nap(1 * MS);
}

static void *do_ioctl(void *unused)
{
	(void)unused;
	wait_for_go(IOCTL);
	all->error = mirror_ioctl(mirror, HMM_DMIRROR_MIGRATE_TO_DEV, memory, copy,
				  PAGES, &all->pages);
	atomic_store(&all->done[IOCTL], 1);
	return NULL;
}

static void *do_mmap(void *unused)
{
	(void)unused;
	wait_for_go(MMAP);
	if (mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
	    MAP_FAILED)
		atomic_store(&all->done[MMAP], 1);
	return NULL;
}

static int do_read(void *unused)
{
	(void)unused;
	wait_for_go(READ);
	if (read(counter, buffer, READ_SIZE) == READ_SIZE)
		atomic_store(&all->done[READ], 1);
	return 0;
}

static void do_offline(void)
{
	int fd = open(ONLINE, O_WRONLY | O_CLOEXEC);

	wait_for_go(OFFLINE);
	if (write(fd, "0", 1) != 1)
		all->offline_error = errno ? errno : EIO;
	atomic_store(&all->done[OFFLINE], 1);
	_exit(0);
}

/* Whether the function is in the thread's kernel stack now. */
static bool in_stack(pid_t thread, const char *function)
{
	char path[64], text[8192];
	ssize_t size;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stack", thread);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	size = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[size > 0 ? size : 0] = '\0';
	return strstr(text, function);
}

/* The kernel's thread that takes processor 1 offline. */
static pid_t hotplug_thread(void)
{
	char path[64], text[32];
	pid_t pid;
	int fd;

	for (pid = 2; pid < 4096; pid++) {
		snprintf(path, sizeof(path), "/proc/%d/comm", pid);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		memset(text, 0, sizeof(text));
		if (read(fd, text, sizeof(text) - 1) > 0 && !strcmp(text, "cpuhp/1\n")) {
			close(fd);
			return pid;
		}
		close(fd);
	}
	die("no cpuhp/1");
}

static bool is_waiting(int actor)
{
	return in_stack(atomic_load(&all->tid[actor]), waits[actor]);
}

/* Until it is done or waits for what the next one holds. */
static void settle(int actor)
{
	atomic_store(&all->go[actor], 1);
	while (!atomic_load(&all->done[actor]) && !is_waiting(actor))
		nap(POLL_NS);
}

static bool finished(void)
{
	int i;

	for (i = 0; i < WATCH; i++)
		if (!atomic_load(&all->done[i]))
			return false;
	return true;
}

/* Until all are done, or whether they wait for each other. */
static bool watch(void)
{
	struct uffdio_copy fill = { .dst = (uintptr_t)buffer & ~(PAGE - 1), .len = PAGE };
	static char page[PAGE] __attribute__((aligned(PAGE)));
	struct pollfd fault = { .fd = faults, .events = POLLIN };
	int actor, looks = 0;

	/* The reader is in its first page, with the mutex. */
	atomic_store(&all->go[READ], 1);
	if (poll(&fault, 1, -1) != 1)
		die("poll");
	/* The stack that shows it is that of the processor's own thread. */
	while (!atomic_load(&all->tid[OFFLINE]))
		nap(1 * MS);
	atomic_store(&all->tid[OFFLINE], hotplug_thread());
	settle(OFFLINE);
	settle(IOCTL);
	settle(MMAP);
	fill.src = (uintptr_t)page;
	if (ioctl(faults, UFFDIO_COPY, &fill))
		die("UFFDIO_COPY");
	for (; !finished(); nap(POLL_NS)) {
		for (actor = 0; actor < WATCH && is_waiting(actor); actor++)
			;
		looks = actor == WATCH ? looks + 1 : 0;
		if (looks == LOOKS)
			return true;
	}
	return false;
}

static void do_watch(void)
{
	if (watch()) {
		atomic_store(&all->deadlock, 1);
		kill(atomic_load(&all->tid[READ]), SIGKILL);
		/* It has no result then, but it is over. */
		atomic_store(&all->done[READ], 1);
		while (!finished())
			nap(POLL_NS);
	}
	_exit(0);
}

static void release(void)
{
	int error = mirror_ioctl(mirror, HMM_DMIRROR_RELEASE, memory, copy, 1, NULL);

	errno = error;
	if (error)
		die("HMM_DMIRROR_RELEASE");
}

/* A counter of processor 1, which counts nothing. */
static int open_counter(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_DUMMY,
		.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED |
			       PERF_FORMAT_TOTAL_TIME_RUNNING | PERF_FORMAT_ID,
	};
	int fd = syscall(SYS_perf_event_open, &attr, -1, 1, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd < 0)
		die("perf_event_open");
	return fd;
}

/* Two pages that are not there, the first of which userfaultfd has to supply. */
static char *map_buffer(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register watched = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	watched.range.start = (uintptr_t)at;
	watched.range.len = PAGE;
	if (at == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) ||
	    ioctl(faults, UFFDIO_REGISTER, &watched))
		die("userfaultfd");
	return at + PAGE - READ_SIZE / 2;
}

static pid_t start(void (*act)(void))
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (!pid)
		act();
	return pid;
}

static void turn(const char *name, bool used_up)
{
	static char stack[64 << 10] __attribute__((aligned(16)));
	pthread_t threads[2];
	pid_t offline, watcher, reader;
	int before, status;
	size_t i;

	memset(all, 0, sizeof(*all));
	memory = map_pages(PAGES);
	counter = open_counter();
	buffer = map_buffer();
	if (used_up)
		release();
	before = chunks();

	offline = start(do_offline);
	watcher = start(do_watch);
	reader = clone(do_read, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL);
	if (reader < 0 || pthread_create(&threads[0], NULL, do_ioctl, NULL) ||
	    pthread_create(&threads[1], NULL, do_mmap, NULL))
		die("no more threads");
	for (i = IOCTL; i <= READ; i++)
		while (!atomic_load(&all->tid[i]))
			nap(1 * MS);
	/* From here on this one may do nothing but wait. */
	atomic_store(&all->go[WATCH], 1);
	if (waitpid(watcher, &status, 0) != watcher || status)
		exit(1);
	waitpid(offline, &status, 0);
	waitpid(reader, &status, 0);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	if (!all->offline_error)
		put(ONLINE, "1");

	printf("{\"turn\": \"%s\", \"mapped\": %d, \"offline_error\": %d, "
	       "\"error\": %d, \"pages\": %" PRIu64 ", \"stuck\": [",
	       name, chunks() - before, all->offline_error, all->error, all->pages);
	for (i = 0; atomic_load(&all->deadlock) && i < WATCH; i++)
		printf("%s\"%s\"", i ? ", " : "", names[i]);
	printf("]}\n");
	fflush(stdout);
	close(faults);
	close(counter);
}

/*
 * A huge page and small ones behind it, where memory for neither is mapped.  The 2 MiB
 * from the first page on are migrated at once: elsewhere the huge page would be split.
 */
static void both_sizes(void)
{
	char *at = mmap(NULL, 3 * HUGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t pages = PAGES + HUGE / PAGE, wrong = 0, i;
	char *to = map_pages(pages);
	unsigned long kb;
	uint64_t done;
	int before, error;

	if (at == MAP_FAILED)
		die("cannot map");
	at = (char *)(((uintptr_t)at + HUGE - 1) & ~(HUGE - 1));
	if (madvise(at, HUGE, MADV_HUGEPAGE) ||
	    madvise(at + HUGE, PAGES * PAGE, MADV_NOHUGEPAGE))
		die("madvise");
	for (i = 0; i < pages; i++)
		at[i * PAGE] = i % 127;
	kb = huge_kb(at);
	release();
	before = chunks();
	error = mirror_ioctl(mirror, HMM_DMIRROR_MIGRATE_TO_DEV, at, to, pages, &done);
	printf("{\"turn\": \"both sizes\", \"mapped\": %d, \"error\": %d, "
	       "\"pages\": %" PRIu64 ", \"huge_kb\": %lu",
	       chunks() - before, error, done, kb);
	for (i = 0; i < pages; i++)
		wrong += to[i * PAGE] != (char)(i % 127) ||
			 at[i * PAGE] != (char)(i % 127);
	printf(", \"wrong\": %zu}\n", wrong);
	fflush(stdout);
}

int main(void)
{
	cpu_set_t first;

	CPU_ZERO(&first);
	CPU_SET(0, &first);
	if (sched_setaffinity(0, sizeof(first), &first))
		die("sched_setaffinity");
	all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED)
		die("cannot map");
	mirror = open_mirror(0);
	copy = map_pages(PAGES);
	turn("memory to spare", false);
	turn("memory used up", true);
	both_sizes();
	return 0;
}
