#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prove series in any CI that runs a shell: TREE is as --kernel takes it, SERIES are
# names with blanks between (default: all).  What is in $OUT is worth keeping; jobs at
# the same time need an $OUT each, as $OUT/latest can lead to one run only.
# kstall is that of the checkout which this script is in, or $KSTALL.
set -eu

top=$(cd "$(dirname "$0")/../../.." && pwd)
kstall=${KSTALL:-$top/.venv/bin/kstall}
out=${OUT:-out}

test -x "$kstall" || make -C "$top" setup

set -f
old=$(readlink "$out/latest" || true)
status=0
# shellcheck disable=SC2086 # one word a series
"$kstall" validate --kernel "${TREE:-debian:7.3}" --level "${LEVEL:-quick}" \
	--out "$out" -- ${SERIES:-} || status=$?

# Without a run, that of before must not be published as if it were this one.
test "$(readlink "$out/latest" || true)" != "$old" || rm -f "$out/latest"

case $status in
0) echo "ci: proven" ;;
1) echo "ci: FAILED: see $out/latest/report.html" ;;
3)
	echo "ci: a series does not apply to this tree, and nothing failed"
	# No failure of what was pushed, unless series.toml expects it to apply: then 1.
	status=0
	;;
*) echo "ci: no verdict: bad input, an interruption or the machine; see above" ;;
esac
exit "$status"
