#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Prepare a machine for kstall: Debian packages (as root on Debian and Ubuntu), then a
# virtual environment in .venv.  Quick when all is there already.
# With LEVEL=deep in the environment it also installs what only that level uses, with
# KSTALL_ARCH what kernels and guests of that architecture need, with KSTALL_BUSY set
# what keeps a machine busy, and with KSTALL_LINT what linters need.  With --packages it
# stops after the packages, for root to run on behalf of another user.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)

missing_of() {
	missing=
	# shellcheck disable=SC2013 # one word a package
	for package in $(sed 's/#.*//' "$top/scripts/$1"); do
		status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
		[ "$status" = "install ok installed" ] || missing="$missing $package"
	done
}

install() {
	echo "setup: installing$*"
	export DEBIAN_FRONTEND=noninteractive
	# shellcheck disable=SC2048,SC2086 # one word a package
	apt-get -qq update && apt-get -qq -o DPkg::Lock::Timeout=600 install -y \
		--no-install-recommends $* >/dev/null
}

missing=
if command -v dpkg-query >/dev/null; then
	missing_of host-packages.txt
else
	for program in bc bison flex gcc git make mmdebstrap qemu-system-x86_64 xz; do
		command -v "$program" >/dev/null || missing="$missing $program"
	done
fi

if [ -n "$missing" ]; then
	if command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; then
		if ! install "$missing"; then
			echo "setup: apt-get failed, see above; missing:$missing" >&2
			exit 2
		fi
	elif command -v apt-get >/dev/null; then
		echo "setup: missing$missing; install:" \
			"sudo apt-get install --no-install-recommends$missing" >&2
		exit 2
	else
		echo "setup: missing$missing; install them with your package manager" >&2
		exit 2
	fi
fi

# A missing package of these lists stops nothing.
optional() {
	command -v dpkg-query >/dev/null || return 0
	missing_of "$1"
	if [ -n "$missing" ] && { [ "$(id -u)" -ne 0 ] || ! install "$missing"; }; then
		echo "setup: $2$missing; to have it: sudo apt-get install$missing" >&2
	fi
}

[ "${LEVEL:-}" != deep ] ||
	optional host-packages-deep.txt "LEVEL=deep skips what needs"
[ -z "${KSTALL_BUSY:-}" ] || optional host-packages-load.txt "a busy host needs"
[ -z "${KSTALL_LINT:-}" ] || optional host-packages-lint.txt "lint skips what needs"

# Cross-compiler and emulator; on a machine of that architecture there is no need.
packages_of_arch() {
	list=host-packages-$1.txt
	if [ ! -e "$top/scripts/$list" ]; then
		[ "$1" = x86_64 ] && return 0
		echo "setup: ARCH=$1: no scripts/$list, so it is not known here" >&2
		exit 2
	fi
	command -v dpkg-query >/dev/null || return 0
	[ "$(dpkg --print-architecture)" != "$1" ] || return 0
	missing_of "$list"
	# If QEMU for x86 is from backports, this one has to be as well.
	case " $missing " in
	*" qemu-system-arm "*)
		if [ "$(id -u)" -eq 0 ] &&
			! apt-get -qq -s install qemu-system-arm >/dev/null 2>&1 &&
			backport_qemu qemu-system-arm
		then
			missing_of "$list"
		fi
		;;
	esac
	if [ -n "$missing" ] && { [ "$(id -u)" -ne 0 ] || ! install "$missing"; }; then
		echo "setup: ARCH=$1 needs$missing; install:" \
			"sudo apt-get install --no-install-recommends$missing" >&2
		exit 2
	fi
}

# Before 8.1, QEMU's emulation can go on running code that the guest's kernel has
# rewritten meanwhile, as it does whenever a tracepoint is switched: guests with two
# processors die of a stray breakpoint now and then.  Debian 12's backports have a later
# one.  Where there is none, kstall runs all of a guest's processors in one thread.
qemu_is_old() {
	version=$(qemu-system-x86_64 --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')
	[ "$(printf '8.1\n%s\n' "$version" | sort -V | head -n 1)" != 8.1 ]
}

backport_qemu() {
	package=$1
	codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
	# What this machine calls Debian's archive; its own apt stays as it is.
	# shellcheck disable=SC2016 # for apt-get
	uri=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' \
		'Identifier: Packages' "Codename: $codename" | head -n 1)
	[ -n "$codename" ] && [ -n "$uri" ] || return 1
	apt=$(mktemp -d) || return 1
	mkdir -p "$apt/lists/partial"
	chmod -R a+rX "$apt"
	keys=/usr/share/keyrings/debian-archive-keyring.gpg
	echo "deb [signed-by=$keys] $uri $codename-backports main" >"$apt/sources.list"
	set -- -qq -o "Dir::Etc::SourceList=$apt/sources.list" \
		-o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$apt/lists" \
		-o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
	status=0
	apt-get "$@" update && DEBIAN_FRONTEND=noninteractive apt-get "$@" install -y \
		--no-install-recommends "$package" >/dev/null || status=1
	rm -rf "$apt"
	return "$status"
}

# Tried once: if it fails, it would fail again.  Whoever runs --packages asks for it.
newer_qemu() {
	if [ -e "$top/.venv/.kstall-no-qemu" ] && [ "${1:-}" != --packages ]; then
		return 0
	fi
	command -v apt-get >/dev/null && qemu_is_old || return 0
	if [ "$(id -u)" -ne 0 ]; then
		echo "setup: with a QEMU before 8.1 guests run in one thread;" \
			"to have a later one: sudo $top/scripts/setup.sh --packages" >&2
	else
		echo "setup: installing a QEMU of 8.1 or later from backports"
		if backport_qemu qemu-system-x86 && ! qemu_is_old; then
			return 0
		fi
		echo "setup: found no newer QEMU; guests will run in one thread" >&2
	fi
	[ ! -d "$top/.venv" ] || touch "$top/.venv/.kstall-no-qemu"
}

if [ "${1:-}" = --packages ]; then
	newer_qemu --packages
	[ -z "${KSTALL_ARCH:-}" ] || packages_of_arch "$KSTALL_ARCH"
	exit 0
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
	# What works is kept in case pip fails, as it does without network.
	clear=--clear
	version='import sys; print(sys.version, sys.base_prefix)'
	if [ "$("$top/.venv/bin/python" -c "$version" 2>/dev/null)" = \
		"$("$python" -c "$version")" ]; then
		clear=
	fi
	"$python" -m venv ${clear:+"$clear"} "$top/.venv"
	log="$top/.venv/setup.log"
	if ! "$top/.venv/bin/pip" install -e "${top}[test]" >"$log" 2>&1; then
		tail -n 20 "$log" >&2
		echo "setup: pip failed, see $log; does pip reach its index?" >&2
		exit 2
	fi
	echo "$state" >"$stamp"
fi

newer_qemu
[ -z "${KSTALL_ARCH:-}" ] || packages_of_arch "$KSTALL_ARCH"
