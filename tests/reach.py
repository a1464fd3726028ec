# SPDX-License-Identifier: GPL-2.0-or-later
"""What ssh is elsewhere: ``reach.py SOCKET [kill|stop]`` to a port of a guest.

With ``kill`` or ``stop`` that happens to the guest when the agent sends its files.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import sys

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def guest(reached: socket.socket) -> int:
    """The process that has the other end."""
    peer = reached.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid: int = struct.unpack("3i", peer)[0]
    return pid


def main() -> None:
    """Both ways, until one has nothing more to say."""
    path, *what = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as reached, selectors.DefaultSelector() as both:
        reached.connect(path)
        both.register(0, selectors.EVENT_READ)
        both.register(reached, selectors.EVENT_READ)
        while True:
            for key, _ in both.select():
                data = os.read(key.fd, 4096)
                if not data:
                    return
                if key.fd == 0:
                    reached.sendall(data)
                    continue
                if what and b'"op": "file"' in data:
                    os.kill(guest(reached), SIGNALS[what[0]])
                    if what[0] == "stop":
                        # What it has sent so far is all.
                        what = []
                        continue
                os.write(1, data)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"reach: {error}")
