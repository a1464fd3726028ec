// SPDX-License-Identifier: GPL-2.0-only
/*
 * Move a page whose mirror does not finish before it is told to, like a hung device.
 *
 * Prints what was seen while it hung: the thread that moves the page, in the callback.
 */
#include "mirror.h"

/* How long the callback is watched as it hangs: more ns than 32 bits hold. */
#define WATCHED	(5000 * MS)

int main(void)
{
	struct mover m = { .page = map_pages(1), .node = 1 };
	uint64_t seen, still;
	pthread_t thread;
	bool hung;

	move_to(m.page, 1, 0);
	put(PASSES_PARAMETER, "1");
	open_mirror(0);
	put(PASSES_PARAMETER, "0");
	if (pthread_create(&thread, NULL, mover, &m))
		die("pthread_create");
	/* Also so that its allocations are made by then. */
	while (!atomic_load(&m.tid) || delayed(m.tid))
		nap(1 * MS);
	put(HOLD_PARAMETER, "1");
	/* From here on nothing may be invalidated but by the thread, which hangs. */
	atomic_store(&m.go, 1);
	while (!delayed(m.tid))
		nap(1 * MS);
	seen = now();
	nap(WATCHED);
	hung = delayed(m.tid);
	still = now();
	put(HOLD_PARAMETER, "0");
	pthread_join(thread, NULL);
	printf("{\"what\": \"stuck\", \"tid\": %d, \"addr\": %" PRIuPTR ", \"pages\": 1, "
	       "\"moved\": %zu, \"seen\": %" PRIu64 ", \"hung\": %d, \"still\": %" PRIu64
	       ", \"began\": %" PRIu64 ", \"ended\": %" PRIu64 "}\n",
	       atomic_load(&m.tid), (uintptr_t)m.page, m.moved.there, seen, hung, still,
	       m.moved.began, m.moved.ended);
	return 0;
}
