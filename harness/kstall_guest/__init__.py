# SPDX-License-Identifier: GPL-2.0-or-later
"""The half of kstall that runs inside the guest.

It uses nothing but what Debian's ``python3-minimal`` holds (no shutil, no ctypes), so
that the guest root stays small.  The host imports it too, for its data formats.
"""
