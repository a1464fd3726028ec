// SPDX-License-Identifier: GPL-2.0-only
/*
 * Move pages one by one while the mirrors take a known time to let go of each.
 *
 * usage: slow MIRRORS DELAY_MS PAGES PASSES(1|2) [filter]
 *
 * With "filter" as many others are moved without a delay, and a trace is taken with the
 * documented filter for callbacks that take long.
 */
#include "mirror.h"

int main(int argc, char **argv)
{
	bool filter = argc == 6 && !strcmp(argv[5], "filter");
	int mirrors = argc == 5 || filter ? atoi(argv[1]) : 0;
	size_t i, pages = mirrors ? strtoul(argv[3], NULL, 0) : 0;
	uint64_t followed = 0;
	char *at, *other;
	struct moved m;

	if (mirrors < 1 || mirrors > 2 || !pages) {
		fprintf(stderr, "usage: slow MIRRORS DELAY_MS PAGES PASSES [filter]\n");
		return 1;
	}
	at = map_pages(pages);
	other = map_pages(pages);
	move_to(at, pages, 0);
	move_to(other, pages, 0);
	if (filter)
		followed = follow(RECIPE_LONG);
	put(PASSES_PARAMETER, argv[4]);
	for (i = 0; i < (size_t)mirrors; i++)
		open_mirror(i);
	put(DELAY_PARAMETER, argv[2]);
	for (i = 0; i < pages; i++) {
		m = move_to(at + i * PAGE, 1, 1);
		say_moved("move", at + i * PAGE, 1, 1, &m);
	}
	put(DELAY_PARAMETER, "0");
	put(PASSES_PARAMETER, "0");
	for (i = 0; filter && i < pages; i++) {
		m = move_to(other + i * PAGE, 1, 1);
		say_moved("quick", other + i * PAGE, 1, 1, &m);
	}
	say_records(followed);
	return 0;
}
