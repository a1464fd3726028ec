# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own selftests: when one that gave up says nothing of the kernel."""

from __future__ import annotations

import pytest

from kstall_guest import selftest

STDOUT = """\
TAP version 13
1..3
ok 1 hmm.hmm_device_private.open_close
#  RUN           hmm.hmm_device_private.migrate ...
#          FAIL  hmm.hmm_device_private.migrate
not ok 2 hmm.hmm_device_private.migrate
"""
GAVE_UP = "no such device\n# migrate: Test terminated by timeout\n"
LAST = STDOUT + "ok 3 hmm.hmm_device_private.snapshot\n"
WRONG = STDOUT + "not ok 3 hmm.hmm_device_private.snapshot\n"


@pytest.mark.parametrize(
    ("stdout", "stderr", "kept_s", "says"),
    [
        (LAST, GAVE_UP, 20.4, "the host kept the guest waiting for 20 s"),
        (LAST, GAVE_UP, None, "the host does not tell how much time it gave"),
        (LAST, GAVE_UP, 14.0, None),
        # That one did not give up.
        (WRONG, GAVE_UP, 20.4, None),
        (LAST, "", 20.4, None),
        ("", "", None, None),
    ],
)
def test_only_tests_that_gave_up_on_a_busy_host_are_excused(
    stdout: str, stderr: str, kept_s: float | None, says: str | None
) -> None:
    trouble = selftest.late(stdout, stderr, kept_s)
    if says is None:
        assert trouble is None
        return
    assert trouble is not None and trouble.fault == "apparatus"
    assert str(trouble) == f"migrate gave up, and {says}"
