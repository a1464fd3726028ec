// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reap a killed process whose mirror cannot let go without sleeping.
 *
 * process_mrelease() is the OOM reaper's code: it does not wait.  The victim reads from
 * its mirror all the time, and a read holds the mirror's mutex while it copies, which a
 * signal does not end.  The victims are killed at different moments of their reads, so
 * that some hold the mutex then.
 *
 * usage: reap MIB VICTIMS
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

/* Kill a victim at `when` of its reads, in thousandths, and reap it. */
static void reap(size_t pages, unsigned int when)
{
	uint64_t hold, began, ended;
	int status, handle, error, ends[2], tries = 0;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC))
		die("pipe2");
	child = fork();
	if (child < 0)
		die("fork");
	if (!child)
		victim(pages, ends[1]);
	if (read(ends[0], &hold, sizeof(hold)) != sizeof(hold))
		die("victim");
	close(ends[0]);
	close(ends[1]);
	handle = syscall(SYS_pidfd_open, child, 0);
	if (handle < 0)
		die("pidfd_open");
	nap(hold * when / 1000);
	kill(child, SIGKILL);
	do {
		began = now();
		error = syscall(SYS_process_mrelease, handle, 0) ? errno : 0;
		ended = now();
		printf("{\"what\": \"reap\", \"tid\": %d, \"victim\": %d, \"error\": %d, "
		       "\"began\": %" PRIu64 ", \"ended\": %" PRIu64 "}\n", tid(),
		       child, error, began, ended);
	} while (error == EAGAIN && ++tries < 5);
	fflush(stdout);
	waitpid(child, &status, 0);
	close(handle);
}

int main(int argc, char **argv)
{
	size_t pages = argc == 3 ? strtoul(argv[1], NULL, 0) << 8 : 0;
	unsigned int i, victims = argc == 3 ? atoi(argv[2]) : 0;

	if (!pages || !victims) {
		fprintf(stderr, "usage: reap MIB VICTIMS\n");
		return 1;
	}
	for (i = 0; i < victims; i++)
		reap(pages, 1000 * (i + 1) / (victims + 1));
	return 0;
}
