// SPDX-License-Identifier: GPL-2.0-only
/*
 * Try to move a page that is a registered io_uring buffer, and so pinned; then move it
 * when it no longer is.
 *
 * usage: pinned ROUNDS
 */
#include "mirror.h"

#include <linux/io_uring.h>
#include <sys/uio.h>

int main(int argc, char **argv)
{
	int i, ring, rounds = argc == 2 ? atoi(argv[1]) : 0;
	struct io_uring_params parameters = { 0 };
	struct iovec buffer;
	struct moved m;

	if (!rounds) {
		fprintf(stderr, "usage: pinned ROUNDS\n");
		return 1;
	}
	buffer.iov_base = map_pages(1);
	buffer.iov_len = PAGE;
	move_to(buffer.iov_base, 1, 0);
	ring = syscall(SYS_io_uring_setup, 1, &parameters);
	if (ring < 0)
		die("io_uring_setup");
	open_mirror(0);
	if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1))
		die("IORING_REGISTER_BUFFERS");
	for (i = 0; i < rounds; i++) {
		m = move_to(buffer.iov_base, 1, 1);
		say_moved("pinned", buffer.iov_base, 1, 1, &m);
	}
	if (syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_BUFFERS, NULL, 0))
		die("IORING_UNREGISTER_BUFFERS");
	m = move_to(buffer.iov_base, 1, 1);
	say_moved("loose", buffer.iov_base, 1, 1, &m);
	return 0;
}
