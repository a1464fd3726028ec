// SPDX-License-Identifier: GPL-2.0-only
/*
 * sq-pressure - put io_uring submission under pressure, and record what happened
 *
 * usage: sq-pressure CASE[=NUMBER[,NUMBER]]...
 *
 * Each case sets up a ring of its own with raw system calls. What user space can
 * know is printed as JSON, one object a line: return values, the ring's own indices
 * and sq_dropped, CQEs, and CLOCK_MONOTONIC around the calls. No trace event is
 * looked at, except by the cases "mid-*" and "async-stall*", which print the text of a
 * tracefs instance of their own.
 *
 * Rings stay open until the end, so that no two of a process have the same address.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>

#define MS		1000000ULL
#define HOLD_MS		200
#define MAX_BATCH	64
#define MAX_WAITS	8192
#define FAILSLAB	"/sys/kernel/debug/failslab/"
#define TRACING		"/sys/kernel/tracing"

struct ring {
	const char *name;
	int fd;
	pid_t sq_thread;
	unsigned int flags, sq_entries, cq_entries;
	unsigned int *sq_head, *sq_tail, *sq_flags, *sq_dropped, *sq_array;
	unsigned int *cq_head, *cq_tail, *cq_overflow;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
	/* user_data of what is queued, in order, for the record */
	uint64_t batch[MAX_BATCH];
	unsigned int batched;
};

/* Above 32 bits, so that an event that has only those shows. */
static uint64_t next_user_data = 0x100000001;

/* ---- output: lines are put together and written at once ---- */

static char *line;
static size_t line_size, line_used;

__attribute__((format(printf, 1, 2))) static void put(const char *format, ...)
{
	va_list ap;
	int n;

	for (;;) {
		va_start(ap, format);
		n = vsnprintf(line + line_used, line_size - line_used, format, ap);
		va_end(ap);
		if (n < 0)
			abort();
		if (line_used + n < line_size)
			break;
		line_size = 2 * line_size + n + 1;
		line = realloc(line, line_size);
		if (!line)
			abort();
	}
	line_used += n;
}

static void end_line(void)
{
	size_t done = 0;

	put("}\n");
	while (done < line_used) {
		ssize_t n = write(STDOUT_FILENO, line + done, line_used - done);

		if (n < 0 && errno != EINTR)
			_exit(3);
		done += n > 0 ? n : 0;
	}
	line_used = 0;
}

/* What every line begins with. */
static void begin_line(const char *kind, const char *name, pid_t tid, int fd)
{
	put("{\"kind\": \"%s\", \"case\": \"%s\", \"pid\": %d, \"tid\": %d, \"fd\": %d, ",
	    kind, name, getpid(), tid, fd);
}

static void put_quoted(const char *text)
{
	put("\"");
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			put("\\%c", *text);
		else if ((unsigned char)*text < ' ')
			put("\\u%04x", *text);
		else
			put("%c", *text);
	}
	put("\"");
}

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	int error = errno;
	va_list ap;

	va_start(ap, format);
	fprintf(stderr, "sq-pressure: ");
	vfprintf(stderr, format, ap);
	fprintf(stderr, ": %s\n", strerror(error));
	va_end(ap);
	_exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

static void sleep_ms(unsigned int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

static pid_t self(void)
{
	return syscall(SYS_gettid);
}

/* ---- files of /proc, debugfs and tracefs ---- */

static void write_file(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, value, strlen(value)) != (ssize_t)strlen(value))
		die("%s: cannot write '%s'", path, value);
	close(fd);
}

static bool read_file(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t used = 0;
	ssize_t n = -1;

	/* Such files give no more than a page at a time. */
	while (fd >= 0 && (n = read(fd, text + used, size - 1 - used)) > 0)
		used += n;
	text[used] = 0;
	if (fd >= 0)
		close(fd);
	return n >= 0;
}

/*
 * Is the thread off its CPU, in system call @nr (-1: any, or none at all)? The file
 * says "running" for a task that is on a run queue, whatever its state.
 */
static bool is_blocked(pid_t tid, int nr)
{
	char path[64], text[256];

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
	if (!read_file(path, text, sizeof(text)))
		die("%s", path);
	if (!strncmp(text, "running", 7))
		return false;
	return nr < 0 || atoi(text) == nr;
}

static void until_in_enter(pid_t tid)
{
	while (!is_blocked(tid, __NR_io_uring_enter))
		sleep_ms(1);
}

/* ---- rings ---- */

static int enter(struct ring *r, unsigned int to_submit, unsigned int min_complete,
		 unsigned int flags)
{
	int ret = syscall(__NR_io_uring_enter, r->fd, to_submit, min_complete, flags,
			  NULL, 0);

	return ret < 0 ? -errno : ret;
}

static void *map(struct ring *r, size_t size, off_t offset)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			r->fd, offset);

	if (at == MAP_FAILED)
		die("mmap of a ring");
	return at;
}

static pid_t sq_thread_of(int fd)
{
	char path[64], text[8192], *at;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	for (;;) {
		if (!read_file(path, text, sizeof(text)))
			die("%s", path);
		/* Until it has set its name, the thread may go by our own id. */
		at = strstr(text, "SqThread:");
		if (at && atoi(at + 9) > 0 && atoi(at + 9) != getpid())
			return atoi(at + 9);
		sleep_ms(1);
	}
}

static struct ring *setup(const char *name, unsigned int entries, unsigned int flags,
			  unsigned int idle_ms, struct ring *attach)
{
	struct io_uring_params p = { .flags = flags, .sq_thread_idle = idle_ms };
	struct ring *r = calloc(1, sizeof(*r));
	unsigned int i;
	size_t sq, cq;
	char *rings;

	if (!r)
		abort();
	if (attach) {
		p.flags |= IORING_SETUP_ATTACH_WQ;
		p.wq_fd = attach->fd;
	}
	r->name = name;
	r->flags = flags;
	r->fd = syscall(__NR_io_uring_setup, entries, &p);
	if (r->fd < 0)
		die("io_uring_setup(%u, 0x%x)", entries, p.flags);
	r->sq_entries = p.sq_entries;
	r->cq_entries = p.cq_entries;
	sq = p.sq_off.array + p.sq_entries * sizeof(unsigned int);
	cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	rings = map(r, sq > cq ? sq : cq, IORING_OFF_SQ_RING);
	r->sqes = map(r, p.sq_entries * sizeof(*r->sqes), IORING_OFF_SQES);
	r->sq_head = (void *)(rings + p.sq_off.head);
	r->sq_tail = (void *)(rings + p.sq_off.tail);
	r->sq_flags = (void *)(rings + p.sq_off.flags);
	r->sq_dropped = (void *)(rings + p.sq_off.dropped);
	r->sq_array = (void *)(rings + p.sq_off.array);
	r->cq_head = (void *)(rings + p.cq_off.head);
	r->cq_tail = (void *)(rings + p.cq_off.tail);
	r->cq_overflow = (void *)(rings + p.cq_off.overflow);
	r->cqes = (void *)(rings + p.cq_off.cqes);
	for (i = 0; i < r->sq_entries; i++)
		r->sq_array[i] = i;
	if (flags & IORING_SETUP_SQPOLL)
		r->sq_thread = sq_thread_of(r->fd);
	begin_line("ring", name, self(), r->fd);
	put("\"sq_entries\": %u, \"flags\": %u, \"sq_thread\": %d", r->sq_entries, flags,
	    r->sq_thread);
	end_line();
	return r;
}

static unsigned int queued(struct ring *r)
{
	return *r->sq_tail - __atomic_load_n(r->sq_head, __ATOMIC_ACQUIRE);
}

static unsigned int dropped(struct ring *r)
{
	return __atomic_load_n(r->sq_dropped, __ATOMIC_RELAXED);
}

/* The SQE at @position beyond the tail. */
static struct io_uring_sqe *sqe_at(struct ring *r, unsigned int position)
{
	return &r->sqes[(*r->sq_tail + position) & (r->sq_entries - 1)];
}

/* Prepare @count NOPs beyond the tail, without the kernel knowing. */
static void prepare(struct ring *r, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++) {
		struct io_uring_sqe *sqe = sqe_at(r, i);

		memset(sqe, 0, sizeof(*sqe));
		sqe->opcode = IORING_OP_NOP;
		sqe->user_data = next_user_data++;
		if (r->batched < MAX_BATCH)
			r->batch[r->batched++] = sqe->user_data;
	}
}

/* One store, so that an SQ thread sees all of them or none. */
static void publish(struct ring *r, unsigned int count)
{
	__atomic_store_n(r->sq_tail, *r->sq_tail + count, __ATOMIC_RELEASE);
}

static void queue(struct ring *r, unsigned int count)
{
	prepare(r, count);
	publish(r, count);
}

static unsigned int reap(struct ring *r, bool print)
{
	unsigned int head = *r->cq_head, count = 0;
	unsigned int tail = __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE);

	for (; head != tail; head++, count++) {
		struct io_uring_cqe *cqe = &r->cqes[head & (r->cq_entries - 1)];

		if (print)
			put("%s[%llu, %d]", count ? ", " : "",
			    (unsigned long long)cqe->user_data, cqe->res);
	}
	__atomic_store_n(r->cq_head, tail, __ATOMIC_RELEASE);
	return count;
}

/* The SQ thread is in schedule(): only a system call can wake it. */
static void until_idle(struct ring *r)
{
	while (!(__atomic_load_n(r->sq_flags, __ATOMIC_SEQ_CST) & IORING_SQ_NEED_WAKEUP) ||
	       !is_blocked(r->sq_thread, -1))
		sleep_ms(1);
}

/* ---- submission ---- */

/*
 * One io_uring_enter(), and for SQPOLL all that the thread then does on its own. The
 * line has what was queued, in order, and its results.
 */
static int submit(struct ring *r, unsigned int to_submit)
{
	bool poll = r->flags & IORING_SETUP_SQPOLL;
	unsigned int queued_before = queued(r), dropped_before = dropped(r), i;
	uint64_t begin, end;
	int ret;

	begin = now_ns();
	ret = enter(r, to_submit, 0, poll ? IORING_ENTER_SQ_WAKEUP : 0);
	if (poll) {
		while (queued(r))
			sleep_ms(1);
		until_idle(r);
	}
	end = now_ns();
	begin_line("submit", r->name, self(), r->fd);
	put("\"begin_ns\": %llu, \"end_ns\": %llu, \"to_submit\": %u, \"ret\": %d, "
	    "\"queued_before\": %u, \"queued_after\": %u, "
	    "\"dropped_before\": %u, \"dropped_after\": %u, \"batch\": [",
	    (unsigned long long)begin, (unsigned long long)end, to_submit, ret, queued_before, queued(r), dropped_before, dropped(r));
	for (i = 0; i < r->batched; i++)
		put("%s%llu", i ? ", " : "", (unsigned long long)r->batch[i]);
	put("], \"cqes\": [");
	reap(r, true);
	put("]");
	end_line();
	/* What is still queued is the end of the batch. */
	if (queued(r) < r->batched) {
		memmove(r->batch, r->batch + r->batched - queued(r),
			queued(r) * sizeof(r->batch[0]));
		r->batched = queued(r);
	}
	return ret;
}

enum fault { NONE, BAD_SECOND, BAD_LAST, BAD_ALL, DROP_FIRST, DROP_SECOND, DROP_LAST, LINK };

static void short_case(const char *name, unsigned int flags, enum fault fault,
		       unsigned int to_submit)
{
	struct ring *r = setup(name, 4, flags, 1, NULL);
	unsigned int tail = *r->sq_tail, i;

	if (flags & IORING_SETUP_SQPOLL)
		until_idle(r);
	prepare(r, 4);
	switch (fault) {
	case NONE:
		break;
	case BAD_SECOND:
		sqe_at(r, 1)->opcode = 255;
		break;
	case BAD_LAST:
		sqe_at(r, 3)->opcode = 255;
		break;
	case BAD_ALL:
		for (i = 0; i < 4; i++)
			sqe_at(r, i)->opcode = 255;
		break;
	case DROP_FIRST:
		r->sq_array[tail & 3] = 1000;
		break;
	case DROP_SECOND:
		r->sq_array[(tail + 1) & 3] = 1000;
		break;
	case DROP_LAST:
		r->sq_array[(tail + 3) & 3] = 1000;
		break;
	case LINK:
		sqe_at(r, 0)->flags = IOSQE_IO_LINK;
		sqe_at(r, 1)->flags = IOSQE_IO_LINK;
		sqe_at(r, 1)->opcode = 255;
		break;
	}
	publish(r, 4);
	submit(r, to_submit);
	/* A well-behaved application submits the rest again. */
	for (i = 0; i < 4 && queued(r); i++)
		submit(r, queued(r));
}

/* Two rings share an SQ thread, which then takes 8 entries of a ring at a time. */
static void case_shared(void)
{
	struct ring *first = setup("shared", 16, IORING_SETUP_SQPOLL, 1, NULL);
	struct ring *second = setup("shared", 16, IORING_SETUP_SQPOLL, 1, first);

	until_idle(first);
	until_idle(second);
	queue(second, 16);
	submit(second, 16);
}

/* ---- no memory ---- */

static const char *const failslab_off[][2] = {
	{ FAILSLAB "probability", "0" },
	{ FAILSLAB "times", "0" },
	{ FAILSLAB "task-filter", "N" },
	{ FAILSLAB "cache-filter", "N" },
	{ FAILSLAB "ignore-gfp-wait", "Y" },
};

static void failslab_end(void)
{
	unsigned int i;

	for (i = 0; i < sizeof(failslab_off) / sizeof(failslab_off[0]); i++)
		write_file(failslab_off[i][0], failslab_off[i][1]);
}

/* The next @times allocations of a request fail; -1: all of them. */
static void failslab_begin(int times)
{
	char value[16];

	failslab_end();
	write_file(FAILSLAB "verbose", "0");
	write_file(FAILSLAB "interval", "1");
	write_file(FAILSLAB "space", "0");
	write_file("/sys/kernel/slab/io_kiocb/failslab", "1");
	write_file(FAILSLAB "cache-filter", "Y");
	write_file(FAILSLAB "ignore-gfp-wait", "N");
	snprintf(value, sizeof(value), "%d", times);
	write_file(FAILSLAB "times", value);
	write_file(FAILSLAB "probability", "100");
}

static int failslab_left(void)
{
	char text[32];

	if (!read_file(FAILSLAB "times", text, sizeof(text)))
		die(FAILSLAB "times");
	return atoi(text);
}

static void put_failslab(const char *name, int fd, int set)
{
	begin_line("failslab", name, self(), fd);
	put("\"set\": %d, \"left\": %d", set, failslab_left());
	end_line();
}

/* A request takes two failures: of a bulk of eight, and of one alone. */
static void case_nomem(const char *name, unsigned int flags, int times)
{
	struct ring *r = setup(name, 4, flags, 1, NULL);
	int i;

	if (flags & IORING_SETUP_SQPOLL)
		until_idle(r);
	queue(r, 4);
	failslab_begin(times);
	/* The SQ thread tries again by itself, other submitters have to call again. */
	for (i = 0; i < 16 && queued(r); i++)
		submit(r, 4);
	put_failslab(name, r->fd, times);
	failslab_end();
}

/* The ring has eight requests at hand and is asked for sixteen. */
static void case_nomem_partial(const char *name)
{
	struct ring *r = setup(name, 16, 0, 0, NULL);
	int i;

	queue(r, 1);
	submit(r, 1);
	queue(r, 16);
	failslab_begin(2);
	for (i = 0; i < 16 && queued(r); i++)
		submit(r, queued(r));
	put_failslab(name, r->fd, 2);
	failslab_end();
}

/* The next allocation of this task fails, and nobody else's. */
static int fail_next(void)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/task/%d/fail-nth", self());
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || write(fd, "1", 1) != 1)
		die("%s", path);
	return fd;
}

static void must_have_failed(int fd)
{
	char text[32] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) < 0 || atoi(text))
		die("the allocation did not fail");
	close(fd);
}

/*
 * There is a request, but no memory for what READV wants to keep with it: an SQE
 * whose own error is -ENOMEM. Per task, the next allocation only.
 */
static void case_nomem_prep(const char *name)
{
	struct ring *r = setup(name, 4, 0, 0, NULL);
	static char byte;
	static struct iovec vector = { &byte, 1 };
	struct io_uring_sqe *sqe;
	int fd, zero;

	zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	if (zero < 0)
		die("/dev/zero");
	/* So that the ring has requests at hand. */
	queue(r, 1);
	submit(r, 1);
	prepare(r, 4);
	sqe = sqe_at(r, 1);
	sqe->opcode = IORING_OP_READV;
	sqe->fd = zero;
	sqe->addr = (uintptr_t)&vector;
	sqe->len = 1;
	publish(r, 4);
	failslab_end();
	write_file(FAILSLAB "verbose", "0");
	write_file(FAILSLAB "ignore-gfp-wait", "N");
	fd = fail_next();
	submit(r, 4);
	must_have_failed(fd);
	failslab_end();
	while (queued(r))
		submit(r, queued(r));
}

/* ---- waiting for room ---- */

struct waiter {
	struct ring *ring;
	pthread_t thread;
	pid_t tid;
	uint64_t begin, end;
	unsigned int flags, queued_before, queued_after;
	int ret;
	/* set by the watching thread: asleep for certain, about to end it, having done so */
	uint64_t asleep, act, acted;
};

static void wait_for_room(struct waiter *w)
{
	w->tid = self();
	w->queued_before = queued(w->ring);
	w->begin = now_ns();
	w->ret = enter(w->ring, 0, 0, IORING_ENTER_SQ_WAIT | w->flags);
	w->end = now_ns();
	w->queued_after = queued(w->ring);
}

static void put_wait(const char *name, const struct waiter *w)
{
	begin_line("wait", name, w->tid, w->ring->fd);
	put("\"begin_ns\": %llu, \"end_ns\": %llu, \"ret\": %d, \"asleep_ns\": %llu, "
	    "\"act_ns\": %llu, \"acted_ns\": %llu, \"queued_before\": %u, "
	    "\"queued_after\": %u",
	    (unsigned long long)w->begin, (unsigned long long)w->end, w->ret, (unsigned long long)w->asleep,
	    (unsigned long long)w->act, (unsigned long long)w->acted,
	    w->queued_before, w->queued_after);
	end_line();
}

static void *waiter_main(void *argument)
{
	struct waiter *w = argument;

	__atomic_store_n(&w->tid, self(), __ATOMIC_RELEASE);
	wait_for_room(w);
	return NULL;
}

static void start_waiter(struct waiter *w)
{
	if (pthread_create(&w->thread, NULL, waiter_main, w))
		die("pthread_create");
	while (!__atomic_load_n(&w->tid, __ATOMIC_ACQUIRE))
		sleep_ms(1);
	until_in_enter(w->tid);
	w->asleep = now_ns();
}

static void wake_sq_thread(struct ring *r)
{
	enter(r, 0, 0, IORING_ENTER_SQ_WAKEUP);
}

static struct ring *full_ring(const char *name)
{
	struct ring *r = setup(name, 4, IORING_SETUP_SQPOLL, 1, NULL);

	until_idle(r);
	queue(r, 4);
	return r;
}

static void case_wait(const char *name)
{
	struct waiter w = { .ring = full_ring(name) };

	start_waiter(&w);
	sleep_ms(HOLD_MS);
	w.act = now_ns();
	wake_sq_thread(w.ring);
	w.acted = now_ns();
	pthread_join(w.thread, NULL);
	put_wait(name, &w);
}

static void on_signal(int number)
{
	(void)number;
}

static void case_wait_signal(const char *name)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct waiter w = { .ring = full_ring(name) };

	sigaction(SIGUSR1, &action, NULL);
	start_waiter(&w);
	sleep_ms(HOLD_MS / 2);
	w.act = now_ns();
	pthread_kill(w.thread, SIGUSR1);
	w.acted = now_ns();
	pthread_join(w.thread, NULL);
	put_wait(name, &w);
}

/* Both tasks are woken by the same pass of the SQ thread. */
static void case_wait_two(const char *name)
{
	struct ring *r = full_ring(name);
	struct waiter one = { .ring = r }, two = { .ring = r };

	start_waiter(&one);
	sleep_ms(HOLD_MS / 2);
	start_waiter(&two);
	sleep_ms(HOLD_MS / 2);
	one.act = two.act = now_ns();
	wake_sq_thread(r);
	one.acted = two.acted = now_ns();
	pthread_join(one.thread, NULL);
	pthread_join(two.thread, NULL);
	put_wait(name, &one);
	put_wait(name, &two);
}

static void case_wait_other_process(const char *name)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		die("fork");
	if (!child) {
		case_wait(name);
		case_wait(name);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		die("the child ended with %d", status);
}

/* Nothing to wait for: an empty ring, one with a last free entry, an overflown one. */
static void case_wait_room(const char *name)
{
	static const unsigned int counts[] = { 0, 3, 5 };
	unsigned int i;

	for (i = 0; i < 3; i++) {
		struct ring *r = setup(name, 4, IORING_SETUP_SQPOLL, 1, NULL);
		struct waiter w = { .ring = r };

		until_idle(r);
		queue(r, counts[i]);
		wait_for_room(&w);
		put_wait(name, &w);
	}
}

/* Without an SQ thread the flag has no meaning, even if the ring is full. */
static void case_wait_no_thread(const char *name)
{
	struct ring *r = setup(name, 4, 0, 0, NULL);
	struct waiter w = { .ring = r };

	queue(r, 4);
	wait_for_room(&w);
	put_wait(name, &w);
}

/* ---- a tracefs instance of the program's own, read while something is stuck ---- */

struct instance {
	char dir[96];
	/* what switch_events() switches, the first one last */
	const char *events[2];
};

static void instance_begin(struct instance *in, const char *first, const char *second)
{
	char path[192];

	in->events[0] = first;
	in->events[1] = second;
	snprintf(in->dir, sizeof(in->dir), TRACING "/instances/sq-pressure-%d", getpid());
	if (mkdir(in->dir, 0700))
		die("%s", in->dir);
	snprintf(path, sizeof(path), "%s/trace_clock", in->dir);
	write_file(path, "mono");
}

static void instance_end(struct instance *in)
{
	if (rmdir(in->dir))
		die("%s", in->dir);
}

static void switch_events(struct instance *in, const char *value)
{
	char path[224];
	int i;

	for (i = 1; i >= 0; i--) {
		snprintf(path, sizeof(path), "%s/events/io_uring/%s/enable", in->dir,
			 in->events[i]);
		write_file(path, value);
	}
}

/* Print what the instance holds, and clear it. */
static void put_trace(struct instance *in)
{
	static char text[65536];
	char path[192], *at, *next;
	const char *between = "";

	snprintf(path, sizeof(path), "%s/trace", in->dir);
	if (!read_file(path, text, sizeof(text)))
		die("%s", path);
	put("\"trace\": [");
	for (at = text; *at; at = next) {
		next = at + strcspn(at, "\n");
		if (*next)
			*next++ = 0;
		if (*at && *at != '#') {
			put("%s", between);
			put_quoted(at);
			between = ", ";
		}
	}
	put("]");
	/* Opening it like this empties it. */
	close(open(path, O_WRONLY | O_TRUNC | O_CLOEXEC));
}

/* ---- async work: a checkpoint's writes, and workers that are held at will ---- */

#define PAGE		4096
#define MAX_WRITES	32

/* The pages are missing until the program supplies them: a write sleeps until then. */
static int held_pages(char *pages, unsigned int count)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_THREAD_ID };
	struct uffdio_register area = {
		.range = { (uintptr_t)pages, (uint64_t)count * PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int fd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &area))
		die("userfaultfd");
	return fd;
}

/* Allow at most so many workers, for bounded and for unbound work. */
static void limit_workers(struct ring *r, unsigned int count)
{
	unsigned int limits[2] = { count, count };

	if (syscall(__NR_io_uring_register, r->fd, IORING_REGISTER_IOWQ_MAX_WORKERS,
		    limits, 2))
		die("IORING_REGISTER_IOWQ_MAX_WORKERS");
}

enum async_mode { PLAIN, CANCEL, LINKED, STALL, KILL, CHAINS };

/*
 * @count buffered writes to @files files in turn, by at most @workers workers. What
 * starts a write reads its page, and is seen doing so, by thread and page; it then
 * sleeps there until the page is supplied, the oldest first, each time after nothing has
 * started for HOLD_MS / 4. So it is known which writes are queued, and for how long they
 * have to be; a worker that waits for a CPU can still begin one of them.
 *
 * CANCEL	the last one is canceled while it is queued
 * LINKED	each one but the first is linked to the one before
 * STALL	the first ones are held for HOLD_MS longer, and meanwhile it is put
 *		what an instance of tracefs has of them
 * KILL		as soon as the first ones are held the process kills itself
 *
 * CANCEL and STALL with one file: all but the first write are queued while that one is
 * held. So the worker takes them off the list together. It is held in the second write
 * when the last one is canceled, or the instance is read.
 */
static void case_async(const char *name, unsigned int flags, unsigned int count,
		       unsigned int files, unsigned int workers, enum async_mode mode)
{
	static char page[PAGE] __attribute__((aligned(PAGE)));
	struct ring *r = setup(name, MAX_WRITES, flags, 1, NULL);
	unsigned int i, next = 0, seen = 0;
	uint64_t seen_ns[MAX_WRITES] = {}, release_ns[MAX_WRITES] = {}, begin, end;
	uint64_t cancel_ns = 0, canceled_ns = 0, first;
	bool cancel = mode == CANCEL, stalled = false;
	const bool chain = files == 1 && (cancel || mode == STALL);
	const unsigned int at_once = chain ? 1 : count;
	unsigned int order[MAX_WRITES];
	int tids[MAX_WRITES] = {}, fds[MAX_WRITES], uffd, ret;
	struct instance in;
	char *pages = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED)
		die("mmap");
	uffd = held_pages(pages, count);
	limit_workers(r, workers);
	for (i = 0; i < files; i++) {
		fds[i] = memfd_create("checkpoint", MFD_CLOEXEC);
		if (fds[i] < 0)
			die("memfd_create");
	}
	prepare(r, count);
	first = r->batch[0];
	for (i = 0; i < count; i++) {
		struct io_uring_sqe *sqe = sqe_at(r, i);

		sqe->opcode = IORING_OP_WRITE;
		sqe->flags = mode == LINKED && i + 1 < count ? IOSQE_IO_LINK : 0;
		sqe->fd = fds[i % files];
		sqe->addr = (uintptr_t)pages + i * PAGE;
		sqe->len = PAGE;
		sqe->off = (uint64_t)(i / files) * PAGE;
	}
	publish(r, at_once);
	if (mode == STALL) {
		instance_begin(&in, "io_uring_queue_async_work",
			       "io_uring_start_async_work");
		switch_events(&in, "1");
	}
	begin = now_ns();
	ret = enter(r, at_once, 0, flags & IORING_SETUP_SQPOLL ? IORING_ENTER_SQ_WAKEUP : 0);
	end = now_ns();
	/* A canceled write that has started all the same is held and released as any other. */
	while (__atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) - *r->cq_head <
	       count + cancel) {
		struct pollfd poll_for = { .fd = uffd, .events = POLLIN };
		struct uffd_msg message;

		if (poll(&poll_for, 1, HOLD_MS / 4) > 0) {
			if (read(uffd, &message, sizeof(message)) != sizeof(message))
				continue;
			i = (message.arg.pagefault.address - (uintptr_t)pages) / PAGE;
			seen_ns[i] = now_ns();
			tids[i] = message.arg.pagefault.feat.ptid;
			order[seen++] = i;
			if (chain && seen == 1) {
				publish(r, count - 1);
				ret += enter(r, count - 1, 0, 0);
				end = now_ns();
			}
			continue;
		}
		if (mode == STALL && seen > chain && !stalled) {
			stalled = true;
			sleep_ms(HOLD_MS);
			begin_line("stall", name, self(), r->fd);
			put("\"at_ns\": %llu, \"begun\": [", (unsigned long long)now_ns());
			for (i = 0; i < seen; i++)
				put("%s%llu", i ? ", " : "",
				    (unsigned long long)(first + order[i]));
			put("], ");
			put_trace(&in);
			end_line();
			/* A worker that comes late is seen before anything is let go. */
			continue;
		}
		if (mode == KILL && seen)
			break;
		if (cancel && seen > chain && !cancel_ns) {
			struct io_uring_sqe *sqe = sqe_at(r, 0);

			prepare(r, 1);
			sqe->opcode = IORING_OP_ASYNC_CANCEL;
			sqe->addr = first + count - 1;
			publish(r, 1);
			cancel_ns = now_ns();
			enter(r, 1, 0, 0);
			canceled_ns = now_ns();
		}
		if (next < seen) {
			struct uffdio_copy copy = {
				.dst = (uintptr_t)pages + order[next] * PAGE,
				.src = (uintptr_t)page,
				.len = PAGE,
			};

			release_ns[order[next++]] = now_ns();
			if (ioctl(uffd, UFFDIO_COPY, &copy))
				die("UFFDIO_COPY");
		}
	}
	begin_line(mode == KILL ? "killed" : "async", name, self(), r->fd);
	put("\"begin_ns\": %llu, \"end_ns\": %llu, \"ret\": %d, \"workers\": %u, "
	    "\"files\": %u, \"cancel_ns\": %llu, \"canceled_ns\": %llu, \"over_ns\": %llu, "
	    "\"writes\": [",
	    (unsigned long long)begin, (unsigned long long)end, ret, workers, files,
	    (unsigned long long)cancel_ns, (unsigned long long)canceled_ns,
	    (unsigned long long)now_ns());
	/* user_data, the worker, when it was seen in the write, when it was let go */
	for (i = 0; i < count; i++)
		put("%s[%llu, %d, %llu, %llu]", i ? ", " : "",
		    (unsigned long long)(first + i), tids[i],
		    (unsigned long long)seen_ns[i], (unsigned long long)release_ns[i]);
	put("], \"cqes\": [");
	reap(r, true);
	put("]");
	end_line();
	if (mode == KILL)
		raise(SIGKILL);
	if (mode == STALL) {
		switch_events(&in, "0");
		instance_end(&in);
	}
	close(uffd);
}

/* A write of @page at the place that it has in @pages, maybe linked to the next SQE. */
static void prepare_write(struct io_uring_sqe *sqe, int fd, char *pages,
			  unsigned int page, bool link)
{
	sqe->opcode = IORING_OP_WRITE;
	sqe->flags = link ? IOSQE_IO_LINK : 0;
	sqe->fd = fd;
	sqe->addr = (uintptr_t)pages + page * PAGE;
	sqe->len = PAGE;
	sqe->off = (uint64_t)page * PAGE;
}

/*
 * Two links of a write and an fsync to one file, and one worker, which is held in a
 * write to that file until both links are queued. It then has the second write to go on
 * with when it is done with the first, so that the first fsync has to be queued; and
 * when it is done with the second write, nothing but the fsync that is linked to it.
 *
 * Each write is held until nothing has started for HOLD_MS / 4; what has completed by
 * then is printed as "done".
 */
static void case_chains(const char *name)
{
	enum { FIRST, WRITE_1, FSYNC_1, WRITE_2, FSYNC_2, COUNT };
	static char page[PAGE] __attribute__((aligned(PAGE)));
	static const int page_of[COUNT] = { 0, 1, -1, 2, -1 };
	static const int write_at[] = { FIRST, WRITE_1, WRITE_2 };
	struct ring *r = setup(name, 8, 0, 1, NULL);
	uint64_t seen_ns[COUNT] = {}, release_ns[COUNT] = {}, first, begin, end;
	unsigned int done[COUNT] = {}, i, head, tail;
	int tids[COUNT] = {}, held = -1, uffd, fd;
	char *pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED)
		die("mmap");
	uffd = held_pages(pages, 3);
	limit_workers(r, 1);
	fd = memfd_create("checkpoint", MFD_CLOEXEC);
	if (fd < 0)
		die("memfd_create");
	prepare(r, 1);
	first = r->batch[0];
	prepare_write(sqe_at(r, 0), fd, pages, 0, false);
	publish(r, 1);
	begin = end = 0;
	if (enter(r, 1, 0, 0) != 1)
		die("the first write");
	for (;;) {
		struct pollfd poll_for = { .fd = uffd, .events = POLLIN };
		struct uffd_msg message;

		head = *r->cq_head;
		tail = __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE);
		if (tail - head == COUNT)
			break;
		if (poll(&poll_for, 1, HOLD_MS / 4) > 0) {
			if (read(uffd, &message, sizeof(message)) != sizeof(message))
				continue;
			held = write_at[(message.arg.pagefault.address -
					 (uintptr_t)pages) / PAGE];
			seen_ns[held] = now_ns();
			tids[held] = message.arg.pagefault.feat.ptid;
			if (held != FIRST)
				continue;
			prepare(r, COUNT - 1);
			for (i = WRITE_1; i < COUNT; i++) {
				struct io_uring_sqe *sqe = sqe_at(r, i - 1);

				if (page_of[i] >= 0) {
					prepare_write(sqe, fd, pages, page_of[i], true);
				} else {
					sqe->opcode = IORING_OP_FSYNC;
					sqe->fd = fd;
				}
			}
			publish(r, COUNT - 1);
			begin = now_ns();
			if (enter(r, COUNT - 1, 0, 0) != COUNT - 1)
				die("the links");
			end = now_ns();
		} else if (held >= 0) {
			struct uffdio_copy copy = {
				.dst = (uintptr_t)pages + page_of[held] * PAGE,
				.src = (uintptr_t)page,
				.len = PAGE,
			};

			done[held] = tail - head;
			release_ns[held] = now_ns();
			held = -1;
			if (ioctl(uffd, UFFDIO_COPY, &copy))
				die("UFFDIO_COPY");
		}
	}
	begin_line("chains", name, self(), r->fd);
	put("\"begin_ns\": %llu, \"end_ns\": %llu, \"over_ns\": %llu, \"requests\": [",
	    (unsigned long long)begin, (unsigned long long)end,
	    (unsigned long long)now_ns());
	/* user_data, the worker, when it was seen in it, when it was let go, and what had
	 * completed by then: so many of "cqes"
	 */
	for (i = 0; i < COUNT; i++)
		put("%s[%llu, %d, %llu, %llu, %u]", i ? ", " : "",
		    (unsigned long long)(first + i), tids[i],
		    (unsigned long long)seen_ns[i], (unsigned long long)release_ns[i],
		    done[i]);
	put("], \"cqes\": [");
	reap(r, true);
	put("]");
	end_line();
	close(uffd);
}

/* Workers belong to a task and outlive a lower limit, so each case is a process. */
static void async_case(const char *name, unsigned int flags, unsigned int count,
		       unsigned int files, unsigned int workers, enum async_mode mode)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		die("fork");
	if (!child) {
		if (mode == CHAINS)
			case_chains(name);
		else
			case_async(name, flags, count, files, workers, mode);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	if (mode == KILL && WIFSIGNALED(status)) {
		begin_line("gone", name, child, -1);
		put("\"gone_ns\": %llu", (unsigned long long)now_ns());
		end_line();
	} else if (status) {
		die("the child ended with %d", status);
	}
}

/* ---- what is lost, as shown in fdinfo ---- */

/* Another process reads the fdinfo; the ring's own counters are printed next to it. */
static void put_fdinfo(struct ring *r, const char *when)
{
	pid_t owner = getpid(), child;
	int status;

	child = fork();
	if (child < 0)
		die("fork");
	if (child) {
		if (waitpid(child, &status, 0) != child || status)
			die("the child ended with %d", status);
		return;
	}
	static char text[8192];
	char path[64], *at, *next;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", owner, r->fd);
	if (!read_file(path, text, sizeof(text)))
		die("%s", path);
	begin_line("fdinfo", r->name, self(), r->fd);
	put("\"owner\": %d, \"when\": \"%s\", \"dropped\": %u, \"overflow\": %u, \"lines\": [",
	    owner, when, dropped(r), __atomic_load_n(r->cq_overflow, __ATOMIC_RELAXED));
	for (at = text; *at; at = next) {
		next = at + strcspn(at, "\n");
		if (*next)
			*next++ = 0;
		put("%s", at == text ? "" : ", ");
		put_quoted(at);
	}
	put("]");
	end_line();
	_exit(0);
}

/*
 * Three SQEs are dropped. Of seven NOPs two fit into the CQ ring, one is kept until
 * there is room, and four are lost for lack of memory.
 */
static void case_counters(const char *name)
{
	struct ring *r = setup(name, 1, 0, 0, NULL), *idle = setup("idle", 1, 0, 0, NULL);
	int i, fd, ret;

	put_fdinfo(r, "before");
	r->sq_array[0] = 1000;
	for (i = 0; i < 3; i++) {
		publish(r, 1);
		enter(r, 1, 0, 0);
	}
	r->sq_array[0] = 0;
	put_fdinfo(r, "dropped");
	for (i = 0; i < 3; i++) {
		queue(r, 1);
		if (enter(r, 1, 0, 0) != 1)
			die("NOP %d", i);
	}
	put_fdinfo(r, "kept");
	failslab_end();
	write_file(FAILSLAB "verbose", "0");
	write_file(FAILSLAB "ignore-gfp-wait", "N");
	for (i = 0; i < 4; i++) {
		queue(r, 1);
		fd = fail_next();
		ret = enter(r, 1, 0, 0);
		must_have_failed(fd);
		if (ret != 1)
			die("NOP %d, returned %d", i, ret);
	}
	failslab_end();
	put_fdinfo(r, "lost");
	put_fdinfo(idle, "lost");
	begin_line("counters", name, self(), r->fd);
	put("\"nops\": %u, \"cqes\": [", r->batched);
	reap(r, true);
	/* Moves to the ring what was kept. */
	ret = enter(r, 0, 0, IORING_ENTER_GETEVENTS);
	put("], \"kept\": [");
	reap(r, true);
	put("], \"ret\": %d", ret);
	end_line();
}

/* ---- load ---- */

/* A busy writer that finds the ring full: @total NOPs through @entries entries. */
static void case_press(const char *name, unsigned int entries, unsigned int total)
{
	static uint64_t begin[MAX_WAITS], end[MAX_WAITS];
	static unsigned int after[MAX_WAITS];
	struct ring *r = setup(name, entries, IORING_SETUP_SQPOLL, 100, NULL);
	unsigned int done = 0, submitted = 0, waits = 0, i;

	while (done < total) {
		while (submitted < total && queued(r) < r->sq_entries &&
		       submitted - done < r->cq_entries) {
			queue(r, 1);
			submitted++;
		}
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (__atomic_load_n(r->sq_flags, __ATOMIC_RELAXED) & IORING_SQ_NEED_WAKEUP)
			wake_sq_thread(r);
		if (submitted < total && queued(r) == r->sq_entries) {
			if (waits == MAX_WAITS)
				die("more waits than expected");
			begin[waits] = now_ns();
			enter(r, 0, 0, IORING_ENTER_SQ_WAIT);
			after[waits] = queued(r);
			end[waits++] = now_ns();
		}
		done += reap(r, false);
	}
	begin_line("press", name, self(), r->fd);
	put("\"nops\": %u, \"dropped\": %u, \"waits\": [", total, dropped(r));
	for (i = 0; i < waits; i++)
		put("%s[%llu, %llu, %u]", i ? ", " : "", (unsigned long long)begin[i],
		    (unsigned long long)end[i], after[i]);
	put("]");
	end_line();
}

/* The ordinary way: submit all, wait for all. */
static void case_nop(const char *name, unsigned int batch, unsigned int loops)
{
	struct ring *r = setup(name, batch, 0, 0, NULL);
	unsigned int i, other = 0, done = 0;
	uint64_t begin = now_ns();

	for (i = 0; i < loops; i++) {
		queue(r, batch);
		other += enter(r, batch, batch, IORING_ENTER_GETEVENTS) != (int)batch;
		done += reap(r, false);
	}
	begin_line("nop", name, self(), r->fd);
	put("\"nops\": %u, \"done\": %u, \"short_returns\": %u, \"dropped\": %u, "
	    "\"ns_per_sqe\": %.1f",
	    batch * loops, done, other, dropped(r),
	    (double)(now_ns() - begin) / batch / loops);
	end_line();
}

/* ---- the events switched on and off while a task sleeps ---- */

/*
 * One wait of HOLD_MS; the event is @before when it begins, and after half of the time
 * is written each of @during, a string of '0' and '1'.
 */
static void mid_wait(struct instance *in, const char *name, const char *before,
		     const char *during)
{
	struct waiter w = { .ring = full_ring(name) };
	uint64_t since = 0, until = 0;

	switch_events(in, before);
	start_waiter(&w);
	sleep_ms(HOLD_MS / 2);
	for (; *during; during++) {
		char value[2] = { *during, 0 };

		since = now_ns();
		switch_events(in, value);
		until = now_ns();
	}
	sleep_ms(HOLD_MS / 2);
	w.act = now_ns();
	wake_sq_thread(w.ring);
	w.acted = now_ns();
	pthread_join(w.thread, NULL);
	put_wait(name, &w);
	begin_line("mid", name, w.tid, w.ring->fd);
	put("\"since_ns\": %llu, \"until_ns\": %llu, ", (unsigned long long)since,
	    (unsigned long long)until);
	put_trace(in);
	end_line();
	switch_events(in, "0");
}

static void case_mid(void)
{
	struct instance in;

	instance_begin(&in, "io_uring_sqring_wait", "io_uring_sqring_wait_end");
	mid_wait(&in, "mid-on", "1", "");
	mid_wait(&in, "mid-on-late", "0", "1");
	mid_wait(&in, "mid-off", "1", "0");
	mid_wait(&in, "mid-off-on", "1", "01");
	mid_wait(&in, "mid-on-again", "1", "");
	instance_end(&in);
}

/* ---- */

static bool run(const char *name, unsigned int a, unsigned int b)
{
	const unsigned int poll = IORING_SETUP_SQPOLL, all = IORING_SETUP_SUBMIT_ALL;

	if (!strcmp(name, "sqe"))
		short_case(name, 0, BAD_SECOND, 4);
	else if (!strcmp(name, "drop"))
		short_case(name, 0, DROP_SECOND, 4);
	else if (!strcmp(name, "drop-first"))
		short_case(name, 0, DROP_FIRST, 4);
	else if (!strcmp(name, "drop-last"))
		short_case(name, 0, DROP_LAST, 4);
	else if (!strcmp(name, "all-drop"))
		short_case(name, all, DROP_SECOND, 4);
	else if (!strcmp(name, "sqpoll-sqe"))
		short_case(name, poll, BAD_SECOND, 4);
	else if (!strcmp(name, "sqpoll-bad-all"))
		short_case(name, poll, BAD_ALL, 4);
	else if (!strcmp(name, "sqpoll-drop"))
		short_case(name, poll, DROP_SECOND, 4);
	else if (!strcmp(name, "none"))
		short_case(name, 0, NONE, 4);
	else if (!strcmp(name, "less"))
		short_case(name, 0, NONE, 3);
	else if (!strcmp(name, "more"))
		short_case(name, 0, NONE, 8);
	else if (!strcmp(name, "last"))
		short_case(name, 0, BAD_LAST, 4);
	else if (!strcmp(name, "link"))
		short_case(name, 0, LINK, 4);
	else if (!strcmp(name, "all-sqe"))
		short_case(name, all, BAD_SECOND, 4);
	else if (!strcmp(name, "sqpoll-none"))
		short_case(name, poll, NONE, 4);
	else if (!strcmp(name, "shared"))
		case_shared();
	else if (!strcmp(name, "nomem"))
		case_nomem(name, 0, a);
	else if (!strcmp(name, "sqpoll-nomem"))
		case_nomem(name, poll, a);
	else if (!strcmp(name, "nomem-partial"))
		case_nomem_partial(name);
	else if (!strcmp(name, "nomem-prep"))
		case_nomem_prep(name);
	else if (!strcmp(name, "wait"))
		case_wait(name);
	else if (!strcmp(name, "wait-signal"))
		case_wait_signal(name);
	else if (!strcmp(name, "wait-two"))
		case_wait_two(name);
	else if (!strcmp(name, "wait-other"))
		case_wait_other_process(name);
	else if (!strcmp(name, "wait-room"))
		case_wait_room(name);
	else if (!strcmp(name, "wait-no-thread"))
		case_wait_no_thread(name);
	else if (!strcmp(name, "async-file"))
		async_case(name, 0, 6, 1, 4, PLAIN);
	else if (!strcmp(name, "async-shards"))
		async_case(name, 0, 8, 8, 2, PLAIN);
	else if (!strcmp(name, "async-sqpoll"))
		async_case(name, poll, 4, 1, 2, PLAIN);
	else if (!strcmp(name, "async-cancel"))
		async_case(name, 0, 4, 4, 1, CANCEL);
	else if (!strcmp(name, "async-cancel-file"))
		async_case(name, 0, 4, 1, 1, CANCEL);
	else if (!strcmp(name, "async-linked"))
		async_case(name, 0, 3, 1, 2, LINKED);
	else if (!strcmp(name, "async-chains"))
		async_case(name, 0, 0, 0, 0, CHAINS);
	else if (!strcmp(name, "async-stall"))
		async_case(name, 0, 5, 5, 2, STALL);
	else if (!strcmp(name, "async-stall-file"))
		async_case(name, 0, 5, 1, 1, STALL);
	else if (!strcmp(name, "async-kill"))
		async_case(name, 0, 4, 1, 2, KILL);
	else if (!strcmp(name, "counters"))
		case_counters(name);
	else if (!strcmp(name, "press"))
		case_press(name, a, b);
	else if (!strcmp(name, "nop"))
		case_nop(name, a, b);
	else if (!strcmp(name, "mid"))
		case_mid();
	else
		return false;
	return true;
}

int main(int count, char **arguments)
{
	int i;

	if (count < 2) {
		fprintf(stderr, "usage: sq-pressure CASE[=NUMBER[,NUMBER]]...\n");
		return 2;
	}
	for (i = 1; i < count; i++) {
		char *value = strchr(arguments[i], '='), *second = NULL;

		if (value) {
			*value++ = 0;
			second = strchr(value, ',');
		}
		if (!run(arguments[i], value ? atoi(value) : 0, second ? atoi(second + 1) : 0)) {
			fprintf(stderr, "sq-pressure: no case '%s'\n", arguments[i]);
			return 2;
		}
	}
	return 0;
}
