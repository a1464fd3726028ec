// SPDX-License-Identifier: GPL-2.0-only
/*
 * Switch trace events on and off until told to stop, by every reader at once.
 *
 * usage: toggle STATUS LIST [triggers]
 *
 * LIST has one hook a line: "event SYSTEM NAME FILTER", or "raw NAME" for one that
 * only BPF knows.  Readers are threads, each with a rhythm of its own:
 *
 *	ftrace	an instance with stack traces, half of the time with the filter, and
 *		every fourth time with a trigger; what it prints is read, so that
 *		printing is run as well
 *	perf	a sampling event with call chain on each CPU, every other time filtered
 *	bpf	a program that takes a stack trace, attached as bpftrace attaches to
 *		tracepoint:
 *	raw	the same, as bpftrace attaches to rawtracepoint:
 *
 * They are fast at first, and slow down once everything was switched often.
 * STATUS is rewritten twice a second, as JSON: for each reader and hook how often it
 * was switched on and off again, how often it was not there, what failed, and how
 * many events were seen.  SIGUSR1 has all but ftrace let go, for they hold a module
 * that has an event, and ftrace do without triggers unless told otherwise; SIGUSR2 has
 * them go on; SIGTERM ends it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
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
#include <time.h>
#include <unistd.h>

#define TRACING		"/sys/kernel/tracing/"
#define INSTANCE	TRACING "instances/kstall-toggle/"
#define MAX_HOOKS	32
#define MAX_CPUS	16
#define RING_PAGES	8
#define STACK_BYTES	128

enum reader { FTRACE, PERF, BPF, RAW, READERS };

static const char *const reader_names[READERS] = { "ftrace", "perf", "bpf", "raw" };
/* How long all hooks stay on, in ms: primes, so that readers meet in all ways. */
static const int on_ms[READERS] = { 31, 23, 17, 13 };
#define OFF_MS		5
/*
 * After so many rounds most of the time is left to the workloads, which take long enough
 * on debug kernels.
 */
#define HURRY		50
#define REST_MS		1500

struct count {
	atomic_ulong toggles, seen, absent, failed;
	_Atomic int error;
};

struct hook {
	bool raw_only;
	char system[64], name[96], filter[1024];
	struct count count[READERS];
	/* Of the two BPF readers; the map is indexed by the hook and the reader. */
	int prog[READERS];
	uint64_t before[READERS];
};

struct ring {
	int fd;
	void *pages;
};

static struct hook hooks[MAX_HOOKS];
static int n_hooks, map_fd = -1, n_cpus;
static atomic_bool stop, hold;
static atomic_int parked;
/* Also while modules go. */
static bool always_triggers;

static void die(const char *format, ...)
{
	int error = errno;
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, ": %s\n", strerror(error));
	exit(1);
}

static void sleep_ms(int ms)
{
	struct timespec time = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&time, NULL);
}

/* Write `text`; 0 or the error. */
static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_TRUNC), error = 0;

	if (fd < 0)
		return errno;
	if (write(fd, text, strlen(text)) < 0)
		error = errno;
	close(fd);
	return error;
}

/* An event of a module that is not loaded is no failure. */
static bool failed(struct hook *hook, enum reader reader, int error)
{
	struct count *count = &hook->count[reader];

	if (!error)
		return false;
	if (error == ENOENT || error == ENODEV) {
		atomic_fetch_add(&count->absent, 1);
	} else {
		atomic_fetch_add(&count->failed, 1);
		atomic_store(&count->error, error);
	}
	return true;
}

/* -- ftrace ------------------------------------------------------------------- */

static const char *event_file(const struct hook *hook, const char *file)
{
	static _Thread_local char path[512];

	snprintf(path, sizeof(path), INSTANCE "events/%s/%s/%s", hook->system,
		 hook->name, file);
	return path;
}

/* Count what the pipe holds, by hook.  A line may be cut at the end of a read. */
static void drain(int pipe)
{
	static char text[65536];
	static size_t kept;
	ssize_t got;

	while ((got = read(pipe, text + kept, sizeof(text) - 1 - kept)) > 0) {
		char *line = text, *end;

		text[kept + got] = '\0';
		while ((end = strchr(line, '\n'))) {
			*end = '\0';
			for (int i = 0; i < n_hooks; i++) {
				char word[128];

				snprintf(word, sizeof(word), ": %s: ", hooks[i].name);
				if (!hooks[i].raw_only && strstr(line, word))
					atomic_fetch_add(&hooks[i].count[FTRACE].seen, 1);
			}
			line = end + 1;
		}
		kept = strlen(line);
		/* A line that does not end is not one of ours. */
		if (kept > sizeof(text) / 2)
			kept = 0;
		memmove(text, line, kept);
	}
}

static void ftrace_round(unsigned long round, int pipe, bool held)
{
	/*
	 * Each of these waits for all readers: not every time, or little is switched.
	 * And none while a module may be unloaded, unless that bug is fixed: the
	 * kernel's event_remove() leaves the probe of an event with a trigger in
	 * place, and warns of that later.
	 */
	const bool triggers = round % 4 == 3 && (!held || always_triggers);
	bool on[MAX_HOOKS] = { false };
	int error;

	for (int i = 0; i < n_hooks; i++) {
		struct hook *hook = &hooks[i];

		if (hook->raw_only)
			continue;
		error = 0;
		if (round % 2 == 0)
			error = put(event_file(hook, "filter"),
				    round % 4 ? hook->filter : "0");
		if (!error && triggers)
			error = put(event_file(hook, "trigger"), "stacktrace:5");
		if (!error)
			error = put(event_file(hook, "enable"), "1");
		on[i] = !failed(hook, FTRACE, error);
	}
	sleep_ms(on_ms[FTRACE]);
	for (int i = 0; i < n_hooks; i++) {
		struct hook *hook = &hooks[i];

		if (hook->raw_only)
			continue;
		error = put(event_file(hook, "enable"), "0");
		/* Also where switching on failed half way. */
		if (triggers)
			put(event_file(hook, "trigger"), "!stacktrace:5");
		if (on[i] && !failed(hook, FTRACE, error))
			atomic_fetch_add(&hook->count[FTRACE].toggles, 1);
	}
	drain(pipe);
}

/* -- perf --------------------------------------------------------------------- */

static long perf_open(const struct hook *hook, int cpu, bool sampling)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
		.disabled = 1,
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_RAW,
		.wakeup_events = 1,
	};
	char path[512], text[32] = "";
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), TRACING "events/%s/%s/id", hook->system, hook->name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (got <= 0) {
		errno = ENODEV;
		return -1;
	}
	attr.config = strtoull(text, NULL, 10);
	if (sampling)
		attr.sample_type |= PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME |
				    PERF_SAMPLE_CPU | PERF_SAMPLE_CALLCHAIN;
	return syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
}

static void perf_round(unsigned long round)
{
	static struct ring rings[MAX_HOOKS][MAX_CPUS];
	const size_t size = (RING_PAGES + 1) * (size_t)sysconf(_SC_PAGESIZE);
	uint64_t value;

	for (int i = 0; i < n_hooks; i++) {
		struct hook *hook = &hooks[i];
		bool on = false;

		for (int cpu = 0; cpu < n_cpus; cpu++) {
			struct ring *ring = &rings[i][cpu];
			int error = 0;

			ring->fd = -1;
			ring->pages = MAP_FAILED;
			if (hook->raw_only)
				continue;
			ring->fd = perf_open(hook, cpu, true);
			if (ring->fd < 0) {
				/* That a CPU is offline is no failure of the event. */
				if (errno != ENODEV || cpu == 0)
					failed(hook, PERF, errno);
				continue;
			}
			ring->pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED,
					   ring->fd, 0);
			if (ring->pages == MAP_FAILED)
				error = errno;
			if (!error && round % 2 && hook->filter[0] &&
			    ioctl(ring->fd, PERF_EVENT_IOC_SET_FILTER, hook->filter))
				error = errno;
			if (!error && ioctl(ring->fd, PERF_EVENT_IOC_ENABLE, 0))
				error = errno;
			on |= !failed(hook, PERF, error);
		}
		if (on)
			atomic_fetch_add(&hook->count[PERF].toggles, 1);
	}
	sleep_ms(on_ms[PERF]);
	for (int i = 0; i < n_hooks; i++) {
		for (int cpu = 0; cpu < n_cpus; cpu++) {
			struct ring *ring = &rings[i][cpu];

			if (ring->fd < 0)
				continue;
			ioctl(ring->fd, PERF_EVENT_IOC_DISABLE, 0);
			if (read(ring->fd, &value, sizeof(value)) == sizeof(value))
				atomic_fetch_add(&hooks[i].count[PERF].seen, value);
			if (ring->pages != MAP_FAILED)
				munmap(ring->pages, size);
			close(ring->fd);
		}
	}
}

/* -- BPF ---------------------------------------------------------------------- */

static long bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

/*
 * Take a stack trace, count, and return 1: what returns 0 keeps the event from perf.
 * What is counted is at `index` of the map.
 */
static int load(enum bpf_prog_type type, int index)
{
	const struct bpf_insn code[] = {
		{ BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_2, BPF_REG_10, 0, 0 },
		{ BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_2, 0, 0, -STACK_BYTES },
		{ BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, STACK_BYTES },
		{ BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_4, 0, 0, 0 },
		{ BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_get_stack },
		{ BPF_ST | BPF_MEM | BPF_W, BPF_REG_10, 0, -STACK_BYTES - 8, index },
		{ BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_2, BPF_REG_10, 0, 0 },
		{ BPF_ALU64 | BPF_ADD | BPF_K, BPF_REG_2, 0, 0, -STACK_BYTES - 8 },
		{ BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map_fd },
		{ 0, 0, 0, 0, 0 },
		{ BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem },
		{ BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_0, 0, 2, 0 },
		{ BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_1, 0, 0, 1 },
		{ BPF_STX | BPF_ATOMIC | BPF_DW, BPF_REG_0, BPF_REG_1, 0, BPF_ADD },
		{ BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 1 },
		{ BPF_JMP | BPF_EXIT, 0, 0, 0, 0 },
	};
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.prog_type = type;
	attr.insns = (uintptr_t)code;
	attr.insn_cnt = sizeof(code) / sizeof(*code);
	/* The helper for stack traces is for such programs only. */
	attr.license = (uintptr_t)"GPL";
	return bpf(BPF_PROG_LOAD, &attr);
}

static void load_all(void)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.map_type = BPF_MAP_TYPE_ARRAY;
	attr.key_size = sizeof(uint32_t);
	attr.value_size = sizeof(uint64_t);
	attr.max_entries = MAX_HOOKS * READERS;
	map_fd = bpf(BPF_MAP_CREATE, &attr);
	if (map_fd < 0)
		die("a BPF map");
	for (int i = 0; i < n_hooks; i++) {
		hooks[i].prog[BPF] = load(BPF_PROG_TYPE_TRACEPOINT, i * READERS + BPF);
		hooks[i].prog[RAW] = load(BPF_PROG_TYPE_RAW_TRACEPOINT, i * READERS + RAW);
		if (hooks[i].prog[BPF] < 0 || hooks[i].prog[RAW] < 0)
			die("a BPF program");
	}
}

static void count_bpf(struct hook *hook, enum reader reader)
{
	uint32_t key = (uint32_t)(hook - hooks) * READERS + reader;
	uint64_t value = 0;
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	attr.map_fd = map_fd;
	attr.key = (uintptr_t)&key;
	attr.value = (uintptr_t)&value;
	if (bpf(BPF_MAP_LOOKUP_ELEM, &attr) == 0)
		atomic_store(&hook->count[reader].seen, value);
}

/* As libbpf does for a tracepoint without links: on any one CPU, it sees them all. */
static int attach_bpf(const struct hook *hook)
{
	int fd = perf_open(hook, 0, false), error;

	if (fd < 0)
		return -errno;
	if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, hook->prog[BPF]) ||
	    ioctl(fd, PERF_EVENT_IOC_ENABLE, 0)) {
		error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

static int attach_raw(const struct hook *hook)
{
	union bpf_attr attr;
	int fd;

	memset(&attr, 0, sizeof(attr));
	attr.raw_tracepoint.name = (uintptr_t)hook->name;
	attr.raw_tracepoint.prog_fd = hook->prog[RAW];
	fd = bpf(BPF_RAW_TRACEPOINT_OPEN, &attr);
	return fd < 0 ? -errno : fd;
}

static void bpf_round(enum reader reader)
{
	int fds[MAX_HOOKS];

	for (int i = 0; i < n_hooks; i++) {
		fds[i] = -1;
		if (reader == BPF && hooks[i].raw_only)
			continue;
		fds[i] = reader == BPF ? attach_bpf(&hooks[i]) : attach_raw(&hooks[i]);
		if (fds[i] < 0)
			failed(&hooks[i], reader, -fds[i]);
	}
	sleep_ms(on_ms[reader]);
	for (int i = 0; i < n_hooks; i++) {
		if (fds[i] < 0)
			continue;
		close(fds[i]);
		atomic_fetch_add(&hooks[i].count[reader].toggles, 1);
		count_bpf(&hooks[i], reader);
	}
}

/* -- all of them -------------------------------------------------------------- */

static void *toggle(void *argument)
{
	enum reader reader = (uintptr_t)argument;
	bool held = false;
	int pipe = -1;

	if (reader == FTRACE) {
		pipe = open(INSTANCE "trace_pipe", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
		if (pipe < 0)
			die(INSTANCE "trace_pipe");
	}
	for (unsigned long round = 0; !atomic_load(&stop); round++) {
		if (reader != FTRACE && atomic_load(&hold)) {
			atomic_fetch_add(&parked, 1);
			while (atomic_load(&hold) && !atomic_load(&stop))
				sleep_ms(10);
			atomic_fetch_sub(&parked, 1);
		}
		if (reader == FTRACE && atomic_load(&hold) != held) {
			/* The round before, with its triggers, is over. */
			held = !held;
			atomic_fetch_add(&parked, held ? 1 : -1);
		}
		if (reader == FTRACE)
			ftrace_round(round, pipe, held);
		else if (reader == PERF)
			perf_round(round);
		else
			bpf_round(reader);
		/* A module should be loaded with its events switched on. */
		sleep_ms(round < HURRY || held ? OFF_MS : REST_MS);
	}
	if (pipe >= 0)
		close(pipe);
	return NULL;
}

static void report(const char *path)
{
	char part[512];
	FILE *file;

	snprintf(part, sizeof(part), "%s.part", path);
	file = fopen(part, "we");
	if (!file)
		die("%s", part);
	fprintf(file, "{\"parked\": %d, \"readers\": {", atomic_load(&parked));
	for (int reader = 0; reader < READERS; reader++) {
		const char *comma = "";

		fprintf(file, "%s\n \"%s\": {", reader ? "," : "", reader_names[reader]);
		for (int i = 0; i < n_hooks; i++) {
			struct count *count = &hooks[i].count[reader];

			if (hooks[i].raw_only && reader != RAW)
				continue;
			fprintf(file, "%s\n  \"%s%s%s\": {\"toggles\": %lu, \"seen\": %lu, "
				"\"absent\": %lu, \"failed\": %lu, \"error\": \"%s\"}",
				comma, hooks[i].system, hooks[i].system[0] ? ":" : "",
				hooks[i].name, atomic_load(&count->toggles),
				atomic_load(&count->seen), atomic_load(&count->absent),
				atomic_load(&count->failed), count->error ?
				strerror(atomic_load(&count->error)) : "");
			comma = ",";
		}
		fprintf(file, "}");
	}
	fprintf(file, "}}\n");
	if (fclose(file) || rename(part, path))
		die("%s", path);
}

static void read_list(const char *path)
{
	FILE *file = fopen(path, "re");
	char line[2048];

	if (!file)
		die("%s", path);
	while (fgets(line, sizeof(line), file)) {
		struct hook *hook = &hooks[n_hooks];

		if (n_hooks == MAX_HOOKS) {
			errno = E2BIG;
			die("%s", path);
		}
		if (sscanf(line, "raw %95s", hook->name) == 1)
			hook->raw_only = true;
		else if (sscanf(line, "event %63s %95s %1023[^\n]", hook->system,
				hook->name, hook->filter) < 2)
			continue;
		n_hooks++;
	}
	fclose(file);
}

static void set_up_instance(void)
{
	if (mkdir(INSTANCE, 0700) && errno != EEXIST)
		die(INSTANCE);
	/* Small, so that it wraps. */
	put(INSTANCE "buffer_size_kb", "256");
	errno = put(INSTANCE "options/stacktrace", "1");
	if (errno)
		die(INSTANCE "options/stacktrace");
}

/* Our readers of it are closed; whatever else the kernel does with it ends soon. */
static void remove_instance(void)
{
	for (int tries = 0; rmdir(INSTANCE); tries++) {
		if (tries == 100)
			die(INSTANCE);
		sleep_ms(100);
	}
}

int main(int argc, char **argv)
{
	pthread_t threads[READERS];
	sigset_t set;
	struct timespec pause = { 0, 500 * 1000000L };

	always_triggers = argc == 4 && !strcmp(argv[3], "triggers");
	if (argc != 3 && !always_triggers) {
		fprintf(stderr, "usage: toggle STATUS LIST [triggers]\n");
		return 2;
	}
	/* Before there is a thread, so that only the wait below takes them. */
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	n_cpus = (int)sysconf(_SC_NPROCESSORS_CONF);
	if (n_cpus > MAX_CPUS)
		n_cpus = MAX_CPUS;
	read_list(argv[2]);
	set_up_instance();
	load_all();
	for (uintptr_t reader = 0; reader < READERS; reader++) {
		errno = pthread_create(&threads[reader], NULL, toggle, (void *)reader);
		if (errno)
			die("a thread");
	}
	while (!atomic_load(&stop)) {
		int got = sigtimedwait(&set, NULL, &pause);

		if (got == SIGUSR1 || got == SIGUSR2)
			atomic_store(&hold, got == SIGUSR1);
		else if (got == SIGTERM)
			atomic_store(&stop, true);
		report(argv[1]);
	}
	for (int reader = 0; reader < READERS; reader++)
		pthread_join(threads[reader], NULL);
	report(argv[1]);
	remove_instance();
	return 0;
}
