# SPDX-License-Identifier: GPL-2.0-only
"""Firmware that looks into PCIe errors first and then tells the kernel.

hest.dat is the body of an ACPI table, HEST, of which QEMU makes the head: one source of
errors, polled, whose block is in memory that the kernel was told to keep off
(`memmap=`).  What firmware would write there, this does.
"""

from __future__ import annotations

import os
import struct
import sys
import time
import uuid
from pathlib import Path

from hierarchy import Device

#: Where the address of the block is, and the block.
ADDRESS = 0x2000_0000
BLOCK = ADDRESS + 0x100
_TABLE = Path("/sys/firmware/acpi/tables/HEST")
_HEAD = 36
_POLL_MS = 200
_SECTION = uuid.UUID("d995e954-bbc1-430f-ad91-b44dcb3c6f35")
_CORRECTED = 2
_VALID_ID_AND_AER = 0x88


def table() -> bytes:
    """The body of HEST: a count, and a generic hardware error source."""
    generic = struct.pack("<HHHBBIII", 9, 0, 0xFFFF, 0, 1, 1, 4, 1024)
    # In system memory, 64 bits wide.
    address = struct.pack("<BBBBQ", 0, 64, 0, 4, ADDRESS)
    notify = struct.pack("<BBHIIIIII", 0, 28, 0, _POLL_MS, 0, 0, 0, 0, 0)
    return struct.pack("<I", 1) + generic + address + notify + struct.pack("<I", 4096)


def _section(number: tuple[int, int, int, int], cor_status: int) -> bytes:
    """A corrected error of a PCIe device, by UEFI's appendix on CPER."""
    domain, bus, device, function = number
    aer = bytearray(96)
    struct.pack_into("<I", aer, 0x10, cor_status)
    body = struct.pack("<QIIHHI", _VALID_ID_AND_AER, 0, 0, 0, 0, 0)
    body += struct.pack(
        "<HH3sBBHBBHB", 0, 0, b"", function, device, domain, bus, 0, 0, 0
    )
    body += bytes(8 + 4 + 60) + aer
    # Revision 2.1, for which no time is given; no name of a replaceable unit.
    head = _SECTION.bytes_le + struct.pack("<IHBBI", _CORRECTED, 0x201, 0, 0, len(body))
    return head + bytes(16 + 20) + body


class Firmware:
    """Memory in which the kernel looks for errors."""

    def __init__(self) -> None:
        found = _TABLE.read_bytes()[_HEAD:]
        if found != table():
            raise SystemExit(f"the guest has another HEST: {found.hex()}")
        self.memory = os.open("/dev/mem", os.O_RDWR)
        os.pwrite(self.memory, bytes(4096), ADDRESS)
        os.pwrite(self.memory, struct.pack("<Q", BLOCK), ADDRESS)

    def report(
        self, errors: list[tuple[tuple[int, int, int, int], int]], limit_s: float = 30.0
    ) -> bool:
        """Say that devices had errors that are corrected; whether that was taken."""
        sections = b"".join(_section(number, status) for number, status in errors)
        os.pwrite(
            self.memory,
            struct.pack("<IIII", 0, 0, len(sections), _CORRECTED) + sections,
            BLOCK + 4,
        )
        # What makes it valid comes last.
        os.pwrite(self.memory, struct.pack("<I", 0x2 | len(errors) << 4), BLOCK)
        limit = time.monotonic() + limit_s
        while struct.unpack("<I", os.pread(self.memory, 4, BLOCK))[0]:
            if time.monotonic() > limit:
                return False
            time.sleep(0.05)
        return True


def missing(device: Device) -> tuple[int, int, int, int]:
    """The number of a device that is not there, on the same bus."""
    domain, bus, _, _ = device.number
    return domain, bus, 31, 7


if __name__ == "__main__":
    # How hest.dat was made.
    sys.stdout.buffer.write(table())
