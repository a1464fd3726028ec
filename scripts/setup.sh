#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Bring a machine to where kstall runs: Debian packages (as root on Debian and
# Ubuntu), then a virtual environment in .venv.  Quick when all is there already.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
wanted=$(sed 's/#.*//' "$top/scripts/host-packages.txt" | tr '\n' ' ')

missing=
if command -v dpkg-query >/dev/null; then
	for package in $wanted; do
		status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
		[ "$status" = "install ok installed" ] || missing="$missing $package"
	done
else
	for program in bc bison flex gcc git make mmdebstrap qemu-system-x86_64 xz; do
		command -v "$program" >/dev/null || missing="$missing $program"
	done
fi

if [ -n "$missing" ]; then
	if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
		echo "setup: installing$missing"
		export DEBIAN_FRONTEND=noninteractive
		apt-get -qq update
		# shellcheck disable=SC2086 # one word a package
		apt-get -qq install -y --no-install-recommends $missing >/dev/null
	elif command -v apt-get >/dev/null; then
		echo "setup: missing$missing; install: sudo apt-get install$missing" >&2
		exit 2
	else
		echo "setup: missing$missing; install them with your package manager" >&2
		exit 2
	fi
fi

# The distribution's python3 may be older than one the user has put first on PATH.
python=
for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
	[ -n "$candidate" ] || continue
	if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' \
		2>/dev/null; then
		python=$candidate
		break
	fi
done
if [ -z "$python" ]; then
	echo "setup: no Python 3.11 or newer; install one, or name it: make PYTHON=..." >&2
	exit 2
fi

stamp="$top/.venv/.kstall-setup"
state=$(cksum "$top/pyproject.toml")
if [ "$(cat "$stamp" 2>/dev/null)" != "$state" ] ||
	! "$top/.venv/bin/python" -c 'import kstall' 2>/dev/null; then
	echo "setup: installing the Python packages into .venv"
	"$python" -m venv --clear "$top/.venv"
	log="$top/.venv/setup.log"
	if ! "$top/.venv/bin/pip" install -e "$top[test]" >"$log" 2>&1; then
		tail -n 20 "$log" >&2
		echo "setup: pip failed, see $log; does pip reach its index?" >&2
		exit 2
	fi
	echo "$state" >"$stamp"
fi
