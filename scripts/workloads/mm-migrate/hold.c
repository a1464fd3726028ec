// SPDX-License-Identifier: GPL-2.0-only
/*
 * Move a page while another thread holds the mirror's mutex for known windows.
 *
 * The callback takes that mutex.  A read of a buffer that is mirrored already holds it
 * while it copies, for most of the system call; before that it allocates a bounce
 * buffer, and it ends at once if the copy cannot be handed out.  The reader reads all
 * the time, and the moves are spread over its windows: most of them meet the mutex,
 * which the lock's own events tell.  Moves that are later than READS reads do not.
 *
 * usage: hold MIB MOVES
 */
#include "mirror.h"

#include <stdatomic.h>

#define READS 512

struct reader {
	int mirror;
	char *buffer;
	void *nowhere;
	size_t pages, reads;
	atomic_bool begun, stop;
	struct { uint64_t began, ended; } at[READS];
};

static uint64_t read_once(struct reader *r)
{
	uint64_t began = now(), ended;
	int error = mirror_ioctl(r->mirror, HMM_DMIRROR_READ, r->buffer, r->nowhere,
				 r->pages, NULL);

	ended = now();
	if (error != EFAULT)
		die("the read ended with %d", error);
	r->at[r->reads].began = began;
	r->at[r->reads++].ended = ended;
	return ended - began;
}

static void *reader(void *argument)
{
	struct reader *r = argument;

	while (!atomic_load(&r->stop) && r->reads < READS) {
		atomic_store(&r->begun, true);
		read_once(r);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	size_t mib = argc == 3 ? strtoul(argv[1], NULL, 0) : 0;
	int moves = argc == 3 ? atoi(argv[2]) : 0;
	static struct reader r;
	uint64_t best = UINT64_MAX;
	pthread_t thread;
	struct moved m;
	char *page;
	size_t n;
	int i;

	if (!mib || !moves) {
		fprintf(stderr, "usage: hold MIB MOVES\n");
		return 1;
	}
	r.pages = mib << 8;
	r.buffer = map_pages(r.pages);
	r.nowhere = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page = map_pages(1);
	move_to(page, 1, 0);
	r.mirror = open_mirror(0);

	/* The first read faults the buffer in, the others take as long as all later ones. */
	read_once(&r);
	for (i = 0; i < 3; i++) {
		uint64_t ns = read_once(&r);

		if (ns < best)
			best = ns;
	}
	r.reads = 0;
	for (i = 0; i < moves; i++) {
		m = move_to(page, 1, (i + 1) % 2);
		say_moved("free", page, 1, (i + 1) % 2, &m);
	}
	if (pthread_create(&thread, NULL, reader, &r))
		die("pthread_create");
	while (!atomic_load(&r.begun))
		nap(1 * MS);
	for (i = 0; i < moves; i++) {
		int node = (i + moves + 1) % 2;

		nap(best * (i + 1) / (moves + 1));
		m = move_to(page, 1, node);
		say_moved("held", page, 1, node, &m);
	}
	atomic_store(&r.stop, true);
	pthread_join(thread, NULL);
	for (n = 0; n < r.reads; n++)
		printf("{\"what\": \"read\", \"began\": %" PRIu64 ", \"ended\": %" PRIu64
		       "}\n", r.at[n].began, r.at[n].ended);
	return 0;
}
