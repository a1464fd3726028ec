#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Run the program of our own name from the root beside us with that root's own C
# library, which is newer than the host's.
here=${0%/*}
exec "$here/../tree/@loader@" \
	--library-path "$here/../tree/usr/lib/@triplet@" \
	"$here/../tree/usr/bin/${0##*/}" "$@"
