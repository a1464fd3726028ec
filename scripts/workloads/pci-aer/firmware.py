# SPDX-License-Identifier: GPL-2.0-only
"""Firmware that handles PCIe errors first and then reports them to the kernel.

hest.dat is the body of an ACPI table, HEST, whose header QEMU adds: one polled source
of errors, whose block is in memory that the kernel was told to keep off (`memmap=`).
This program writes there what firmware would.
"""

from __future__ import annotations

import os
import struct
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from hierarchy import Device

from kstall_guest import waiting

#: Where the address of the block is, and the block.
ADDRESS = 0x2000_0000
BLOCK = ADDRESS + 0x100
_TABLE = Path("/sys/firmware/acpi/tables/HEST")
_HEAD = 36
_POLL_MS = 200
_SECTION = uuid.UUID("d995e954-bbc1-430f-ad91-b44dcb3c6f35")
_RECOVERABLE, _CORRECTED = 0, 2
_VALID_ID_AND_AER = 0x88


def table() -> bytes:
    """The body of HEST: a count, and a generic hardware error source."""
    generic = struct.pack("<HHHBBIII", 9, 0, 0xFFFF, 0, 1, 1, 4, 1024)
    # In system memory, 64 bits wide.
    address = struct.pack("<BBBBQ", 0, 64, 0, 4, ADDRESS)
    notify = struct.pack("<BBHIIIIII", 0, 28, 0, _POLL_MS, 0, 0, 0, 0, 0)
    return struct.pack("<I", 1) + generic + address + notify + struct.pack("<I", 4096)


@dataclass(frozen=True)
class Error:
    """What the AER capability of a device had; a corrected error unless ``uncor``."""

    number: tuple[int, int, int, int]
    cor: int = 0
    uncor: int = 0
    header: tuple[int, int, int, int] = (0, 0, 0, 0)
    root_command: int = 0

    @property
    def severity(self) -> int:
        """By UEFI's appendix on CPER."""
        return _RECOVERABLE if self.uncor else _CORRECTED

    def section(self) -> bytes:
        """The error of a PCIe device, by that appendix."""
        domain, bus, device, function = self.number
        aer = bytearray(96)
        struct.pack_into("<I", aer, 0x4, self.uncor)
        struct.pack_into("<I", aer, 0x10, self.cor)
        struct.pack_into("<IIII", aer, 0x1C, *self.header)
        struct.pack_into("<I", aer, 0x2C, self.root_command)
        body = struct.pack("<QIIHHI", _VALID_ID_AND_AER, 0, 0, 0, 0, 0)
        body += struct.pack(
            "<HH3sBBHBBHB", 0, 0, b"", function, device, domain, bus, 0, 0, 0
        )
        body += bytes(8 + 4 + 60) + aer
        # Revision 2.1, without a time, and without a name of a replaceable unit.
        head = _SECTION.bytes_le
        head += struct.pack("<IHBBI", self.severity, 0x201, 0, 0, len(body))
        return head + bytes(16 + 20) + body


class Firmware:
    """The memory in which the kernel looks for errors."""

    def __init__(self) -> None:
        body = _TABLE.read_bytes()[_HEAD:]
        if body != table():
            raise SystemExit(f"the guest has another HEST: {body.hex()}")
        self.memory = os.open("/dev/mem", os.O_RDWR)
        os.pwrite(self.memory, bytes(4096), ADDRESS)
        os.pwrite(self.memory, struct.pack("<Q", BLOCK), ADDRESS)

    def report(self, *errors: Error, limit_s: float = 120.0) -> bool:
        """Report these errors; returns whether the kernel took them in time."""
        sections = b"".join(error.section() for error in errors)
        worst = min(error.severity for error in errors)
        os.pwrite(
            self.memory,
            struct.pack("<IIII", 0, 0, len(sections), worst) + sections,
            BLOCK + 4,
        )
        # What makes it valid comes last.
        valid = 0x2 if worst == _CORRECTED else 0x1
        os.pwrite(self.memory, struct.pack("<I", valid | len(errors) << 4), BLOCK)
        return waiting.until(self._is_taken, limit_s, "answer", patched=True)

    def _is_taken(self) -> bool:
        return os.pread(self.memory, 4, BLOCK) == bytes(4)


def missing(device: Device) -> tuple[int, int, int, int]:
    """The number of a device that is not there, on the same bus."""
    domain, bus, _, _ = device.number
    return domain, bus, 31, 7


if __name__ == "__main__":
    # How hest.dat was made.
    sys.stdout.buffer.write(table())
