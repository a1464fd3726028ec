#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prove the series of a matrix on what its trees are tonight, and write a page of what
# changed since last night.  It sends nothing to anybody.
#
# usage: nightly.sh MATRIX.toml PLACE [SERIES...]
#
# PLACE/index.html is the page; PLACE/runs has the nights, of which KEEP stay.  Exit
# status: that of `kstall compare`, so a job is red only if something got worse; the
# first night, that of `kstall validate`.
set -eu

kstall=${KSTALL:-.venv/bin/kstall}
keep=${KEEP:-14}

if test $# -lt 2; then
	echo "usage: $0 MATRIX.toml PLACE [SERIES...]" >&2
	exit 2
fi
matrix=$1 place=$2
shift 2
runs=$place/runs
mkdir -p "$runs"

# One night may be longer than a day.
exec 9>"$place/lock"
if ! flock --nonblock 9; then
	echo "nightly: the night before is not over: $place/lock is held" >&2
	exit 2
fi

# The last night that came to its end: one that was cut short is no yardstick.
before=
for run in "$runs"/2*; do
	if test -e "$run/matrix.json" &&
		! grep -Eq '^  "status": "(running|interrupted)"' "$run/matrix.json"; then
		before=$run
	fi
done

status=0
"$kstall" validate --matrix "$matrix" --out "$runs" -- "$@" || status=$?
latest=$(readlink "$runs/latest" || true)
after=$runs/$latest
if test -z "$latest" || test "$after" = "$before"; then
	echo "nightly: no matrix came of it, see above" >&2
	exit 2
fi

if test -z "$before"; then
	echo "nightly: the first night; nothing to compare with"
	"$kstall" compare "$after" "$after" --html "$place/index.html" >/dev/null
	exit "$status"
fi

status=0
"$kstall" compare "$before" "$after" --html "$place/index.html" \
	--json "$place/changed.json" || status=$?
# The pages of nights stay with them.
"$kstall" compare "$before" "$after" --html "$after/changed.html" >/dev/null || true

# Names begin with the time, so the oldest come first.
left=$(find "$runs" -maxdepth 1 -type d -name '2*' | wc -l)
for run in "$runs"/2*; do
	test "$left" -gt "$keep" || break
	rm -rf "$run"
	left=$((left - 1))
done
exit "$status"
