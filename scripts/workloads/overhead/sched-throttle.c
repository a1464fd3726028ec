// SPDX-License-Identifier: GPL-2.0-only
/*
 * sched-throttle - switch between processes, or throttle one, and count instructions
 *
 * usage: sched-throttle free | quota | throttled
 *
 * free		pass a byte to and fro between two processes, as `perf bench sched pipe`
 *		does it: each turn is two switches of the only CPU
 * quota	the same in a group whose time is accounted, and which never uses it up
 * throttled	give a group its quota, which it uses up: see throttle()
 */
#define _GNU_SOURCE
#include "measure.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROOT	"/sys/fs/cgroup"
#define GROUP	ROOT "/overhead"

/* The least that there is, in the longest period. */
#define THROTTLED ROOT "/overhead-throttled"
#define QUOTA	"1000 1000000"

/* Two instructions each at least, and each is a nanosecond: longer than the quota. */
#define TURNS	550000

static int there[2], back[2];

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die(path);
	close(fd);
}

static void limit(const char *group, const char *quota)
{
	char path[64];

	if (access(ROOT "/cgroup.controllers", F_OK) &&
	    mount("none", ROOT, "cgroup2", 0, NULL))
		die("mount");
	put(ROOT "/cgroup.subtree_control", "+cpu");
	if (mkdir(group, 0755) && errno != EEXIST)
		die(group);
	snprintf(path, sizeof(path), "%s/cpu.max", group);
	put(path, quota);
	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	put(path, "0");
}

static void turn(void *unused)
{
	char byte = 0;

	(void)unused;
	if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
		die("pipe");
}

/* A process that dies with this one. */
static pid_t child(void (*run)(void))
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run();
		_exit(0);
	}
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void answer(void)
{
	char byte;

	while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
		;
}

static void pass(void)
{
	pid_t other = child(answer);

	measure(40, turn, NULL);
	end(other);
}

static void set_policy(int policy, int priority)
{
	struct sched_param param = { .sched_priority = priority };

	if (sched_setscheduler(0, policy, &param))
		die("sched_setscheduler");
}

/* Use up the quota, tell the messenger, and have the kernel notice. */
static void consume(void)
{
	struct timespec used;
	char byte = 0;
	unsigned int i;

	limit(THROTTLED, QUOTA);
	do {
		for (i = 0; i < TURNS; i++)
			__asm__ volatile("");
		if (write(there[1], &byte, 1) != 1)
			break;
		/* It accounts for what has been used, and throttles on the way back. */
	} while (!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used));
}

/* Of the idle class, which is behind the consumer until that is throttled. */
static void carry(void)
{
	set_policy(SCHED_IDLE, 0);
	answer();
}

static void refill(void *fd)
{
	char byte;

	if (pwrite(*(int *)fd, QUOTA, strlen(QUOTA), 0) < 0)
		die(THROTTLED);
	if (read(back[0], &byte, 1) != 1)
		die("pipe");
}

/*
 * Time passes only with instructions: nobody waits for the next period.  A new quota ends
 * the throttling, and the consumer runs a fixed number of instructions until it is
 * throttled again.  Then the messenger wakes this process, which goes before all others.
 */
static void throttle(void)
{
	pid_t consumer = child(consume), messenger = child(carry);
	char byte;
	int fd;

	set_policy(SCHED_FIFO, 1);
	if (read(back[0], &byte, 1) != 1)
		die("pipe");
	fd = open(THROTTLED "/cpu.max", O_WRONLY);
	if (fd < 0)
		die(THROTTLED);
	measure(1, refill, &fd);
	/* One that is throttled does not die before it has a quota again. */
	put(THROTTLED "/cpu.max", "max");
	end(consumer);
	end(messenger);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: sched-throttle free | quota | throttled\n");
		return 1;
	}
	if (pipe(there) || pipe(back))
		die("pipe");
	if (!strcmp(argv[1], "throttled")) {
		throttle();
		return 0;
	}
	/* Four times what there is to use. */
	if (!strcmp(argv[1], "quota"))
		limit(GROUP, "400000 100000");
	pass();
	return 0;
}
