# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that are written: as a whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from .errors import OpsError, shown


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft beside ``path`` that takes its place when the block ends well.

    Raises `OpsError` if a file cannot be read or written; then ``path`` is as it was,
    and nothing is left beside it.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        _remove(draft)
        yield draft
        draft.replace(path)
    except OSError as error:
        # Some have no name of a file, as what is written into one that is open.
        where = error.filename if error.filename not in (None, str(draft)) else path
        said = f"{where}: {error.strerror or error}"
        raise OpsError(shown(f"{said}; {path} is as it was", 400)) from None
    except (duckdb.IOException, duckdb.FatalException) as error:
        first = str(error).splitlines()[0].rpartition("Error: ")[2]
        first = first.replace(str(draft.absolute()), str(path))
        raise OpsError(
            shown(f"{path}: not written, and as it was: {first}", 400)
        ) from None
    finally:
        _remove(draft)


def _remove(draft: Path) -> None:
    for one in (draft, draft.with_name(draft.name + ".wal")):
        try:
            one.unlink()
        except OSError:
            # It is not there, or the error that kept it from being made is told.
            continue
