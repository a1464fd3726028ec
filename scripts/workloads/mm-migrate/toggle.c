// SPDX-License-Identifier: GPL-2.0-only
/*
 * Switch the events on and off around and amid callbacks, and count what is traced.
 *
 * Uses its own ftrace instance, and there is no other: that would keep the events on, as
 * a static key is switched for all.  The function tracer counts the calls of the
 * invalidation, and of the helpers that read the clock.
 */
#include "mirror.h"

#define INSTANCE	"/sys/kernel/tracing/instances/mm-migrate-toggle/"
#define EVENTS		INSTANCE "events/mmu_notifier/"
#define BOTH		EVENTS "enable"
#define BEGIN		EVENTS "mmu_notifier_callback_begin/enable"
#define END		EVENTS "mmu_notifier_callback_end/enable"
/* Of a callback during which events are switched, which takes long on a busy host. */
#define DELAY		"2000"
#define SHORT_DELAY	"200"

/* The lines that have both words. */
static int count(const char *word, const char *other)
{
	FILE *trace = fopen(INSTANCE "trace", "re");
	char line[1024];
	int n = 0;

	if (!trace)
		die("trace");
	while (fgets(line, sizeof(line), trace))
		n += line[0] != '#' && strstr(line, word) &&
		     strstr(line, other);
	fclose(trace);
	return n;
}

/* The duration in the last line that has the word. */
static unsigned long long duration(const char *word)
{
	FILE *trace = fopen(INSTANCE "trace", "re");
	unsigned long long ns = 0;
	char line[1024], *at;

	if (!trace)
		die("trace");
	while (fgets(line, sizeof(line), trace)) {
		at = strstr(line, word) ? strstr(line, " duration_ns=") : NULL;
		if (at)
			ns = strtoull(at + 13, NULL, 10);
	}
	fclose(trace);
	return ns;
}

/* What was traced since the last step; `amid` is whether it was switched in a callback. */
static void step(const char *name, const struct moved *m, bool amid)
{
	const char *cause = "event=migration_entry", *begin = "_callback_begin: ";
	const char *end = "_callback_end: ";

	printf("{\"what\": \"%s\", \"moved\": %zu, \"begins\": %d, \"ends\": %d, "
	       "\"events\": %d, \"helpers\": %d, \"passages\": %d, \"amid\": %d, "
	       "\"duration_ns\": %llu, "
	       "\"began\": %" PRIu64 ", \"ended\": %" PRIu64 "}\n", name, m->there,
	       count(begin, cause), count(end, cause), count(begin, "") + count(end, ""),
	       count("_traced", ""), count(": __mmu_notifier_invalidate_range_start", ""),
	       amid, duration(cause), m->began, m->ended);
	fflush(stdout);
	put(INSTANCE "trace", "");
}

/* One page's callback takes DELAY; amid it, `enable` is written to that file. */
static void amid(const char *name, char *page, int node, const char *file,
		 const char *enable)
{
	struct mover m = { .page = page, .node = node, .go = 1 };
	pthread_t thread;
	bool still;

	put(DELAY_PARAMETER, DELAY);
	if (pthread_create(&thread, NULL, mover, &m))
		die("pthread_create");
	/* Starting a thread invalidates a few ranges, too, and so takes its time. */
	while (!atomic_load(&m.tid) || !delayed(m.tid))
		nap(1 * MS);
	put(file, enable);
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
	/* An error in the pattern is returned here. */
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
	put(PASSES_PARAMETER, "1");
	open_mirror(0);
	put(PASSES_PARAMETER, "0");
	functions();

	m = move_to(at, pages, 1);
	step("off", &m, false);
	put(BEGIN, "1");
	m = move_to(at, pages, 0);
	step("begin alone", &m, false);
	put(END, "1");
	m = move_to(at, pages, 1);
	step("both", &m, false);
	put(BEGIN, "0");
	m = move_to(at, pages, 0);
	step("end alone", &m, false);
	put(END, "0");
	m = move_to(at, pages, 1);
	step("off again", &m, false);

	amid("on amid", at, 0, BOTH, "1");
	put(DELAY_PARAMETER, SHORT_DELAY);
	m = move_to(at, 1, 1);
	step("on, slow", &m, false);
	amid("off amid", at, 0, BOTH, "0");
	put(BEGIN, "1");
	amid("end on amid", at, 1, END, "1");
	put(BOTH, "0");
	put(DELAY_PARAMETER, "0");

	put(INSTANCE "current_tracer", "nop");
	if (rmdir(INSTANCE))
		die("rmdir");
	return 0;
}
