// SPDX-License-Identifier: GPL-2.0-only
/*
 * sched-throttle - pass a byte to and fro between two processes, and count instructions
 *
 * usage: sched-throttle free | quota
 *
 * As `perf bench sched pipe` does it: each turn is two switches of the only CPU.  With
 * a quota both are in a group whose time is accounted, and which never uses it up.
 */
#define _GNU_SOURCE
#include "measure.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOT	"/sys/fs/cgroup"
#define GROUP	ROOT "/overhead"

static int there[2], back[2];

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		die(path);
	close(fd);
}

static void limit(void)
{
	if (access(ROOT "/cgroup.controllers", F_OK) &&
	    mount("none", ROOT, "cgroup2", 0, NULL))
		die("mount");
	put(ROOT "/cgroup.subtree_control", "+cpu");
	if (mkdir(GROUP, 0755) && errno != EEXIST)
		die(GROUP);
	/* Four times what there is to use. */
	put(GROUP "/cpu.max", "400000 100000");
	put(GROUP "/cgroup.procs", "0");
}

static void turn(void *unused)
{
	char byte = 0;

	(void)unused;
	if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
		die("pipe");
}

int main(int argc, char **argv)
{
	char byte;
	pid_t child;

	if (argc != 2) {
		fprintf(stderr, "usage: sched-throttle free | quota\n");
		return 1;
	}
	if (!strcmp(argv[1], "quota"))
		limit();
	if (pipe(there) || pipe(back))
		die("pipe");
	child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
			;
		_exit(0);
	}
	measure(40, turn, NULL);
	kill(child, SIGKILL);
	return 0;
}
