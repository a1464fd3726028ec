#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Run "$@" as the guest's only job.  Files beside this script tell the host that it
# began, what it printed and how it ended: the console is the kernel's, and loses lines
# when both write to it.
control=${0%/*}
: >"$control/began"
# virtme-ng's /tmp is an overlay, in which O_TMPFILE fails; the kernel's selftests, for
# one, rely on it.
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /tmp
"$@" >"$control/output" 2>&1
echo $? >"$control/status.part"
mv "$control/status.part" "$control/status"
