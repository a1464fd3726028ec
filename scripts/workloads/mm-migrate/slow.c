// SPDX-License-Identifier: GPL-2.0-only
/*
 * Move pages one by one while the mirrors take a known time to let go of each.
 *
 * usage: slow MIRRORS DELAY_MS PAGES PASSES(1|2)
 */
#include "mirror.h"

int main(int argc, char **argv)
{
	int mirrors = argc == 5 ? atoi(argv[1]) : 0;
	size_t i, pages = argc == 5 ? strtoul(argv[3], NULL, 0) : 0;
	struct moved m;
	char *at;

	if (mirrors < 1 || mirrors > 2 || !pages) {
		fprintf(stderr, "usage: slow MIRRORS DELAY_MS PAGES PASSES\n");
		return 1;
	}
	at = map_pages(pages);
	move_to(at, pages, 0);
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
	return 0;
}
