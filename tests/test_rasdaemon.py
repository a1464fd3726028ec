# SPDX-License-Identifier: GPL-2.0-or-later
"""What our patch for rasdaemon makes of a record, without rasdaemon and a guest.

The functions that the patch adds are compiled behind stubs of what they call.  Whether
they fit rasdaemon itself shows test_live_rasdaemon.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PATCHES = Path(__file__).parent.parent / "patches/pci-aer/rasdaemon"
FIELDS = ("root_status", "err_src", "domain", "dropped")
BEFORE = r"""
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUF_LEN 1024
#define log(where, level, ...) fprintf(stderr, __VA_ARGS__)
enum { LOGLEVEL_EMERG, LOGLEVEL_CRIT, LOGLEVEL_ERR };
static const char *loglevel_str[] = { "EMERG", "CRIT", "ERR" };
struct trace_seq;
struct tep_event;
struct tep_record { unsigned long long ts, values[4]; };
struct ras_events { int use_uptime; time_t uptime_diff; };
static const unsigned long long user_hz = 100;
STRUCT

static int tep_get_field_val(struct trace_seq *s, struct tep_event *event,
                 const char *name, struct tep_record *record,
                 unsigned long long *value, int err)
{
    static const char *names[] = { NAMES };

    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) {
            *value = record->values[i];
            return 0;
        }
    return -1;
}

static void *tep_get_field_raw(struct trace_seq *s, struct tep_event *event,
                   const char *name, struct tep_record *record,
                   int *len, int err)
{
    return "0000:00:10.0";
}

static int bitfield_msg(char *buf, size_t len, const char **names, int bits,
            int offset, int ignore, uint64_t status)
{
    return snprintf(buf, len, "%llx", (unsigned long long)status);
}

static void trace_seq_printf(struct trace_seq *s, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
}

static void trace_seq_puts(struct trace_seq *s, const char *text)
{
    fputs(text, stderr);
}

static const char *trigger_check(const char *trigger) { return trigger; }

static int run_trigger(const char *trigger, char *argv[], char **env,
               const char *reporter)
{
    for (; *env; env++)
        if (strncmp(*env, "TIMESTAMP=", 10))
            printf("%s\t", *env);
    printf("\n");
    return 0;
}
"""
AFTER = r"""
int main(int argc, char **argv)
{
    struct ras_events ras = { 0 };

    aer_msg_event_trigger_setup();
    for (int i = 1; i + 3 < argc; i += 4) {
        struct tep_record record = { 0 };

        for (int n = 0; n < 4; n++)
            record.values[n] = strtoull(argv[i + n], NULL, 0);
        if (ras_aer_msg_event_handler(NULL, &record, NULL, &ras))
            return 1;
    }
    return 0;
}
"""


def added(patch: str, file: str) -> list[list[str]]:
    """What the patch adds to ``file``, hunk by hunk."""
    (part,) = (p for p in patch.split("diff --git ")[1:] if p.startswith(f"a/{file} "))
    return [
        [line[1:] for line in hunk.splitlines()[1:] if line.startswith("+")]
        for hunk in re.split(r"(?m)^(?=@@ )", part)[1:]
    ]


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that hands its arguments, four for a record, to the handler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (file,) = PATCHES.glob("*.patch")
    patch = file.read_text()
    code = max(added(patch, "ras-aer-handler.c"), key=len)
    text = "\n".join(line for hunk in added(patch, "ras-record.h") for line in hunk)
    (struct,) = re.findall(r"(?ms)^struct ras_aer_msg_event \{.*?^\};", text)
    names = ", ".join(f'"{name}"' for name in FIELDS)
    before = BEFORE.replace("STRUCT", struct).replace("NAMES", names)
    place = tmp_path_factory.mktemp("rasdaemon")
    source = place / "handler.c"
    source.write_text(before + "\n".join(code) + AFTER)
    words = [compiler, "-Wall", "-o", str(place / "handler"), str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return place / "handler"


def handled(
    handler: Path, *records: tuple[int, int, int], **env: str
) -> subprocess.CompletedProcess[str]:
    """What comes of records: status, source, and whether they were dropped."""
    values = [
        hex(value)
        for status, source, dropped in records
        for value in (status, source, 0, dropped)
    ]
    return subprocess.run(
        [handler, *values],
        env={**os.environ, "AER_MSG_TRIGGER": "/bin/true", **env},
        capture_output=True,
        text=True,
        check=True,
    )


def runs(handler: Path, *records: tuple[int, int, int], **env: str) -> list[list[str]]:
    """The environment of each run of the trigger."""
    done = handled(handler, *records, **env)
    return [line.split("\t")[:-1] for line in done.stdout.splitlines()]


def level(handler: Path, status: int) -> str:
    """What comes before the time in the line about a record."""
    log = handled(handler, (status, 0, 0)).stderr
    (severity,) = re.findall(r"([A-Z]+) \d{4}-", log)
    return str(severity)


def test_correctable_messages_run_no_trigger(handler: Path) -> None:
    flood = [(0x1, 0x300, 0), (0x3, 0x300, 0), (0x2, 0, 0), (0x1, 0x300, 1)] * 50
    assert runs(handler, *flood) == []


@pytest.mark.parametrize("dropped", [0, 1])
@pytest.mark.parametrize("status", [0x24, 0x54, 0x2C, 0x8, 0x25, 0x21, 0x41])
def test_uncorrectable_messages_run_it(
    handler: Path, status: int, dropped: int
) -> None:
    (told,) = runs(handler, (0x1, 0x300, 0), (status, 0x04080300, dropped))
    assert told[1:] == [
        "ROOT_PORT=0000:00:10.0",
        f"ROOT_STATUS=0x{status:08x}",
        f"COR_SOURCE={'0000:03:00.0' if status & 1 else ''}",
        f"UNCOR_SOURCE={'0000:04:01.0' if status & 4 else ''}",
        f"DROPPED={dropped}",
    ]


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        *((0x1, "ERR"), (0x3, "ERR"), (0x2, "ERR"), (0x24, "CRIT"), (0x25, "CRIT")),
        *((0x8, "CRIT"), (0x21, "CRIT"), (0x54, "EMERG"), (0x41, "EMERG")),
    ],
)
def test_what_runs_it_is_reported_as_worse(
    handler: Path, status: int, wanted: str
) -> None:
    assert level(handler, status) == wanted
    assert bool(runs(handler, (status, 0, 0))) == (wanted != "ERR")


def test_a_port_that_does_not_answer_has_no_message(handler: Path) -> None:
    done = handled(handler, (0xFFFFFFFF, 0xFFFFFFFF, 1))
    assert (done.stdout, "EMERG" in done.stderr) == ("", False)
    assert done.stderr.endswith("Root Port inaccessible")


def test_a_long_path_is_handed_over_whole(handler: Path) -> None:
    path = ":".join(f"/opt/tools/{n}/bin" for n in range(100))
    ((first, *_),) = runs(handler, (0x24, 0x04080000, 0), PATH=path)
    assert first == f"PATH={path}"


def test_without_a_trigger_nothing_runs(handler: Path) -> None:
    assert runs(handler, (0x24, 0x04080000, 0), AER_MSG_TRIGGER="") == []
