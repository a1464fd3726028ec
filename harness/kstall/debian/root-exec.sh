#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Run the program of our own name from the root beside us with that root's own C
# library, which is newer than the host's.
here=${0%/*}
exec "$here/../tree/lib64/ld-linux-x86-64.so.2" \
	--library-path "$here/../tree/usr/lib/x86_64-linux-gnu" \
	"$here/../tree/usr/bin/${0##*/}" "$@"
