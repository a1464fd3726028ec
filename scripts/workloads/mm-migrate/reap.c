// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reap a killed process whose mirror cannot let go without sleeping.
 *
 * process_mrelease() is the OOM reaper's code: it does not wait.  The victim's second
 * thread holds the mirror's mutex in a read, which a signal does not end.
 *
 * usage: reap MIB
 */
#include "mirror.h"

#include <signal.h>

#ifndef SYS_process_mrelease
#define SYS_process_mrelease 448
#endif

static void victim(size_t pages, int ready)
{
	char *buffer = map_pages(pages);
	void *nowhere = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int mirror = open_mirror(0);
	uint64_t best = UINT64_MAX, began;
	int i;

	for (i = 0; i < 4; i++) {
		began = now();
		mirror_ioctl(mirror, HMM_DMIRROR_READ, buffer, nowhere, pages, NULL);
		if (i && now() - began < best)
			best = now() - began;
	}
	if (write(ready, &best, sizeof(best)) != sizeof(best))
		_exit(1);
	for (;;)
		mirror_ioctl(mirror, HMM_DMIRROR_READ, buffer, nowhere, pages, NULL);
}

int main(int argc, char **argv)
{
	size_t pages = argc == 2 ? strtoul(argv[1], NULL, 0) << 8 : 0;
	uint64_t hold, began, ended;
	int status, handle, error, ends[2], tries = 0;
	pid_t child;

	if (!pages) {
		fprintf(stderr, "usage: reap MIB\n");
		return 1;
	}
	if (pipe2(ends, O_CLOEXEC))
		die("pipe2");
	child = fork();
	if (child < 0)
		die("fork");
	if (!child)
		victim(pages, ends[1]);
	if (read(ends[0], &hold, sizeof(hold)) != sizeof(hold))
		die("victim");
	handle = syscall(SYS_pidfd_open, child, 0);
	if (handle < 0)
		die("pidfd_open");
	nap(hold / 2);
	kill(child, SIGKILL);
	do {
		began = now();
		error = syscall(SYS_process_mrelease, handle, 0) ? errno : 0;
		ended = now();
		printf("{\"what\": \"reap\", \"tid\": %d, \"victim\": %d, \"error\": %d, "
		       "\"began\": %" PRIu64 ", \"ended\": %" PRIu64 "}\n", tid(),
		       child, error, began, ended);
	} while (error == EAGAIN && ++tries < 5);
	waitpid(child, &status, 0);
	return 0;
}
