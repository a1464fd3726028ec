// SPDX-License-Identifier: GPL-2.0-only
/*
 * Move a page while another thread holds the mirror's mutex for a known window.
 *
 * The callback takes that mutex.  A read of a buffer that is mirrored already holds it
 * while it copies, and ends at once if the copy cannot be handed out, so that the end
 * of the system call is the end of the hold, but for freeing the bounce buffer.
 *
 * usage: hold MIB ROUNDS
 */
#include "mirror.h"

#include <stdatomic.h>

struct reader {
	int mirror;
	char *buffer;
	void *nowhere;
	size_t pages;
	atomic_uint wanted, begun, done;
	uint64_t began, ended;
};

static void *reader(void *argument)
{
	struct reader *r = argument;
	unsigned int round;
	int error;

	for (round = 1;; round++) {
		while (atomic_load(&r->wanted) < round)
			nap(100000);
		r->began = now();
		atomic_store(&r->begun, round);
		error = mirror_ioctl(r->mirror, HMM_DMIRROR_READ, r->buffer, r->nowhere,
				     r->pages, NULL);
		r->ended = now();
		if (error != EFAULT)
			die("the read ended with %d", error);
		atomic_store(&r->done, round);
	}
	return NULL;
}

static unsigned int start(struct reader *r)
{
	unsigned int round = atomic_fetch_add(&r->wanted, 1) + 1;

	while (atomic_load(&r->begun) < round)
		nap(50000);
	return round;
}

static void finish(struct reader *r, unsigned int round)
{
	while (atomic_load(&r->done) < round)
		nap(100000);
}

int main(int argc, char **argv)
{
	size_t mib = argc == 3 ? strtoul(argv[1], NULL, 0) : 0;
	int rounds = argc == 3 ? atoi(argv[2]) : 0;
	struct reader r = { .pages = mib << 8 };
	uint64_t hold, best = UINT64_MAX;
	pthread_t thread;
	unsigned int round;
	struct moved m;
	char *page;
	int i;

	if (!mib || !rounds) {
		fprintf(stderr, "usage: hold MIB ROUNDS\n");
		return 1;
	}
	r.buffer = map_pages(r.pages);
	r.nowhere = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	page = map_pages(1);
	move_to(page, 1, 0);
	r.mirror = open_mirror(0);
	if (pthread_create(&thread, NULL, reader, &r))
		die("pthread_create");

	/* The first read faults the buffer in, the others are as long as a hold. */
	for (i = 0; i < 4; i++) {
		finish(&r, start(&r));
		hold = r.ended - r.began;
		if (i && hold < best)
			best = hold;
	}
	printf("{\"what\": \"read\", \"ns\": %" PRIu64 "}\n", best);

	for (i = 0; i < rounds; i++) {
		m = move_to(page, 1, (i + 1) % 2);
		say_moved("free", page, 1, (i + 1) % 2, &m);
	}
	for (i = 0; i < rounds; i++) {
		int node = (i + rounds + 1) % 2;

		round = start(&r);
		nap(best / 3);
		m = move_to(page, 1, node);
		finish(&r, round);
		printf("{\"what\": \"hold\", \"began\": %" PRIu64 ", \"ended\": %" PRIu64
		       "}\n", r.began, r.ended);
		say_moved("held", page, 1, node, &m);
	}
	return 0;
}
