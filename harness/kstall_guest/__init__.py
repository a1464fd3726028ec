# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of kstall that runs inside the guest.

It uses only what Debian's ``python3-minimal`` has (no shutil, no ctypes), so that the
guest root stays small.  The host imports it too, for its data formats.
"""
