#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prove the series of a matrix on what its trees are tonight, and write a page of what
# changed since last night.  It sends nothing to anybody.
#
# usage: nightly.sh MATRIX.toml PLACE [SERIES...]
#
# PLACE/index.html is the page; PLACE/runs has the nights, of which the last KEEP stay,
# and older ones that are still compared with.  WORKERS is as --workers takes it.
# kstall is that of the checkout which this script is in, or $KSTALL.
#
# Exit status: that of `kstall compare`, so a job is red only if something got worse; the
# first night, that of `kstall validate`; 4 if there is no page of tonight: if PLACE has
# one, it is of the night before.
set -eu

top=$(cd "$(dirname "$0")/../../.." && pwd)
kstall=${KSTALL:-$top/.venv/bin/kstall}
keep=${KEEP:-14}
workers=${WORKERS:-}

no_page() {
	echo "nightly: $1" >&2
	exit 4
}

test $# -ge 2 || no_page "usage: $0 MATRIX.toml PLACE [SERIES...]"
matrix=$1 place=$2
shift 2
runs=$place/runs
mkdir -p "$runs" || no_page "cannot make $runs"
test -w "$place" || no_page "cannot write to $place"

# One night may be longer than a day.
exec 9>"$place/lock"
flock --nonblock 9 || no_page "the night before is not over: $place/lock is held"

old=$(readlink "$runs/latest" || true)
status=0
"$kstall" validate --matrix "$matrix" --out "$runs" \
	${workers:+--workers "$workers"} -- "$@" || status=$?
latest=$(readlink "$runs/latest" || true)
after=$runs/$latest
if test -z "$latest" || test "$latest" = "$old"; then
	no_page "no matrix came of it, see above"
fi

# The nights that came to their end: one that was cut short is no yardstick.  Names
# begin with the time, so the oldest come first.
set --
for run in "$runs"/2*; do
	if test "$run" != "$after" && test -e "$run/matrix.json" &&
		! grep -Eq '^  "status": "(running|interrupted)"' "$run/matrix.json"; then
		set -- "$@" "$run"
	fi
done

rm -f "$place/index.html" "$place/changed.json"
if test $# -eq 0; then
	echo "nightly: the first night; nothing to compare with"
	"$kstall" compare "$after" "$after" --html "$place/index.html" >/dev/null || true
	test -e "$place/index.html" || no_page "its page could not be written, see above"
	exit "$status"
fi

# A tree that could not be fetched last night is compared with an older night.
status=0
"$kstall" compare "$@" "$after" --html "$place/index.html" \
	--json "$place/changed.json" || status=$?
test -e "$place/index.html" || no_page "the nights could not be compared, see above"
# The pages of nights stay with them.
"$kstall" compare "$@" "$after" --html "$after/changed.html" >/dev/null || true

left=$(find "$runs" -maxdepth 1 -type d -name '2*' | wc -l)
for run in "$runs"/2*; do
	test "$left" -gt "$keep" || break
	left=$((left - 1))
	# Tomorrow it may be needed again.
	grep -q "/${run##*/}\"" "$place/changed.json" || rm -rf "$run"
done
exit "$status"
