#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prove series in any CI that runs a shell: TREE is as --kernel takes it, SERIES are
# names with blanks between (default: all).  What is in $OUT is worth keeping.
set -eu

kstall=${KSTALL:-.venv/bin/kstall}
out=${OUT:-out}

test -x "$kstall" || make setup

set -f
status=0
# shellcheck disable=SC2086 # one word a series
"$kstall" validate --kernel "${TREE:-debian:7.3}" --level "${LEVEL:-quick}" \
	--out "$out" -- ${SERIES:-} || status=$?

case $status in
0) echo "ci: proven" ;;
1) echo "ci: FAILED: see $out/latest/report.html" ;;
3)
	echo "ci: a series does not apply to this tree, and nothing failed"
	# No failure of what was pushed, unless series.toml expects it to apply: then 1.
	status=0
	;;
*) echo "ci: COULD NOT JUDGE: the machine's fault, not the patches'; run it again" ;;
esac
exit "$status"
