/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * For what the kernel gives up by the clock, which goes on while the host lets this
 * machine do nothing: tell the agent that the failure may be the host's.
 */
#ifndef EXCUSE_H
#define EXCUSE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* What the host writes once a second, see kstall_guest/hosttime.py. */
#ifndef LOST
#define LOST "/run/kstall-control/lost"
#endif

/* Seconds for which the host has kept this machine waiting; -1 if it does not tell. */
static inline double kept_waiting(void)
{
	FILE *file = fopen(LOST, "re");
	double seconds = -1;

	if (file) {
		if (fscanf(file, "%lf", &seconds) != 1)
			seconds = -1;
		fclose(file);
	}
	return seconds;
}

/*
 * It took longer than `limit` seconds, of which the host may have given less than half
 * since it had kept this machine waiting for `before`. Leaves errno as it is.
 */
static inline void excuse(const char *what, double before, double limit)
{
	const char *place = getenv("KSTALL_TROUBLE");
	int error = errno;
	double now;
	FILE *file;

	/* A wait is counted when it ends, and written a moment later. */
	sleep(2);
	now = kept_waiting();
	if (place && (before < 0 || now < 0 || now - before >= limit / 2)) {
		file = fopen(place, "ae");
		if (file) {
			fprintf(file, "not-in-time %s in %g s", what, limit);
			if (before < 0 || now < 0)
				fprintf(file, ": the host does not tell how much of that it gave\n");
			else
				fprintf(file, ", and the host kept the guest waiting for %.0f s\n",
					now - before);
			fclose(file);
		}
	}
	errno = error;
}

#endif
