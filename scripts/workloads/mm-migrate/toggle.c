// SPDX-License-Identifier: GPL-2.0-only
/*
 * Switch the event on and off around and amid callbacks, and count what is traced.
 *
 * An own ftrace instance, because that of an onlooker would keep the event on: a
 * static key is switched for all.  The function tracer counts the passages through
 * the invalidation, and through the helpers that read the clock.
 */
#include "mirror.h"

#include <stdatomic.h>
#include <sys/stat.h>

#define INSTANCE	"/sys/kernel/tracing/instances/mm-migrate-toggle/"
#define EVENT		INSTANCE "events/mmu_notifier/mmu_notifier_invalidate/enable"
/* Of a callback that the event is switched amid: to switch takes long on a busy host. */
#define DELAY		"2000"
#define SHORT_DELAY	"200"

struct mover {
	char *page;
	int node;
	atomic_int tid;
	struct moved moved;
};

static void *mover(void *argument)
{
	struct mover *m = argument;

	atomic_store(&m->tid, tid());
	m->moved = move_to(m->page, 1, m->node);
	return NULL;
}

static int count(const char *word)
{
	FILE *trace = fopen(INSTANCE "trace", "re");
	char line[1024];
	int n = 0;

	if (!trace)
		die("trace");
	while (fgets(line, sizeof(line), trace))
		n += line[0] != '#' && strstr(line, word);
	fclose(trace);
	return n;
}

/* What was traced since the last step; `amid` is whether it was switched in a callback. */
static void step(const char *name, const struct moved *m, bool amid)
{
	printf("{\"what\": \"%s\", \"moved\": %zu, \"migrations\": %d, \"events\": %d, "
	       "\"helpers\": %d, \"passages\": %d, \"amid\": %d, \"began\": %" PRIu64
	       ", \"ended\": %" PRIu64 "}\n", name, m->there, count("migration=1"),
	       count(": mmu_notifier_invalidate: "), count("_traced"),
	       count(": __mmu_notifier_invalidate_range_start"), amid, m->began, m->ended);
	fflush(stdout);
	put(INSTANCE "trace", "");
}

/* Whether a thread moves pages, and its callback delays that. */
static bool delayed(int tid)
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

/* One page's callback takes DELAY; amid it, `enable` is written. */
static void amid(const char *name, char *page, int node, const char *enable)
{
	struct mover m = { .page = page, .node = node };
	pthread_t thread;
	bool still;

	put(DELAY_PARAMETER, DELAY);
	if (pthread_create(&thread, NULL, mover, &m))
		die("pthread_create");
	/* To begin a thread invalidates a few ranges, too, and so takes its time. */
	while (!atomic_load(&m.tid) || !delayed(m.tid))
		nap(1 * MS);
	put(EVENT, enable);
	still = delayed(m.tid);
	pthread_join(thread, NULL);
	step(name, &m.moved, still);
}

/* One pattern a write; those that have been written before stay. */
static void filter(const char *pattern)
{
	int fd = open(INSTANCE "set_ftrace_filter", O_WRONLY | O_APPEND);

	if (fd < 0 || write(fd, pattern, strlen(pattern)) != (ssize_t)strlen(pattern))
		die("set_ftrace_filter: %s", pattern);
	/* What is wrong with the pattern is said here. */
	if (close(fd))
		die("set_ftrace_filter: %s", pattern);
}

static void functions(void)
{
	char me[16];

	snprintf(me, sizeof(me), "%d", getpid());
	put(INSTANCE "set_ftrace_pid", me);
	put(INSTANCE "options/function-fork", "1");
	filter("__mmu_notifier_invalidate_range_start\n");
	filter("mn_itree*_traced*\n");
	filter("mn_hlist*_traced*\n");
	put(INSTANCE "current_tracer", "function");
}

int main(void)
{
	size_t pages = 16;
	struct moved m;
	char *at = map_pages(pages);

	if (mkdir(INSTANCE, 0700))
		die(INSTANCE);
	put(INSTANCE "trace_clock", "mono");
	move_to(at, pages, 0);
	open_mirror(0);
	functions();

	m = move_to(at, pages, 1);
	step("off", &m, false);
	put(EVENT, "1");
	m = move_to(at, pages, 0);
	step("on", &m, false);
	put(EVENT, "0");
	m = move_to(at, pages, 1);
	step("off again", &m, false);

	amid("on amid", at, 0, "1");
	put(DELAY_PARAMETER, SHORT_DELAY);
	m = move_to(at, 1, 1);
	step("on, slow", &m, false);
	amid("off amid", at, 0, "0");
	put(DELAY_PARAMETER, "0");

	put(INSTANCE "current_tracer", "nop");
	if (rmdir(INSTANCE))
		die("rmdir");
	return 0;
}
