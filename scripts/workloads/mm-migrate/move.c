// SPDX-License-Identifier: GPL-2.0-only
/*
 * Move pages between two nodes while none, one or two devices mirror this process.
 *
 * usage: move MIRRORS PAGES ROUNDS	PAGES may be "huge": one huge page
 */
#include "mirror.h"

int main(int argc, char **argv)
{
	bool huge = argc == 4 && !strcmp(argv[2], "huge");
	size_t pages = huge ? 512 : argc == 4 ? strtoul(argv[2], NULL, 0) : 0;
	int mirrors = argc == 4 ? atoi(argv[1]) : 0;
	int rounds = argc == 4 ? atoi(argv[3]) : 0;
	struct moved m;
	char *at;
	int i;

	if (!pages || !rounds || mirrors < 0 || mirrors > 2) {
		fprintf(stderr, "usage: move MIRRORS PAGES ROUNDS\n");
		return 1;
	}
	at = huge ? map_huge() : map_pages(pages);
	if (huge && huge_kb(at) != 2048)
		die("no huge page, but %lu kB", huge_kb(at));
	/* Wherever they are, they are on node 0 now. */
	move_to(at, huge ? 1 : pages, 0);
	for (i = 0; i < mirrors; i++)
		open_mirror(i);
	for (i = 0; i < rounds; i++) {
		/* A huge page moves as a whole; its first address names it. */
		m = move_to(at, huge ? 1 : pages, (i + 1) % 2);
		say_moved("move", at, pages, (i + 1) % 2, &m);
	}
	if (huge)
		printf("{\"what\": \"huge\", \"kb\": %lu}\n", huge_kb(at));
	return 0;
}
