"""Files and folders that are there as a whole or not at all, even after a crash.

A part being written has a hidden name beside its final one and takes that name in one rename,
after everything has reached the disk. A killed writer leaves only a hidden part folder, which the
next writer of the same target removes.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd

from capplan.encoding import to_text
from capplan.schema import DataError

STALE_S = 60.0
"""A part folder younger than this is never removed, locked or not."""


def check_place(target: Path) -> None:
    """Check that a folder or file can be created; DataError names a file in its way."""
    above = next((path for path in target.parents if path.exists()), None)
    if above is not None and not above.is_dir():
        raise DataError("a folder, to hold what is written below it", where=above, value="a file")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that becomes ``target`` at the end of the block.

    If the block raises, nothing is left. Raises OSError if ``target`` is a folder with files by
    then.
    """
    with part_folder(target) as part:
        yield part
        settle(part)
        part.rename(target)
        _sync(target.parent)


@contextmanager
def part_folder(target: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside ``target``; it is removed at the end."""
    check_place(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    _put_back(target)
    _clear_stale(target)
    part = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
    part.chmod(0o777 & ~_umask())
    lock = os.open(part, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield part
    finally:
        os.close(lock)
        shutil.rmtree(part, ignore_errors=True)


def swap_in(part: Path, target: Path) -> None:
    """Replace ``target`` by a finished part folder.

    A writer killed between the two renames leaves the old folder under a hidden name, which the
    next writer of the same target puts back.
    """
    settle(part)
    old = None
    if target.exists():
        old = target.with_name(f"{_prefix(target, 'old')}{part.name.rpartition('-')[2]}")
        target.rename(old)
    part.rename(target)
    _sync(target.parent)
    if old is not None:
        shutil.rmtree(old)


def write_file(target: Path, content: bytes) -> None:
    """Write a file as a whole: readers see the old content or all of the new."""
    check_place(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear_stale(target)
    handle, name = tempfile.mkstemp(prefix=_prefix(target), dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o666 & ~_umask())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    _sync(target.parent)


def settle(folder: Path) -> None:
    """Wait until every file and folder below, and the folder itself, is on the disk."""
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink():
            _sync(path)
    _sync(folder)


def _prefix(target: Path, state: str = "part") -> str:
    return f".{target.name}.{state}-"


def _put_back(target: Path) -> None:
    for old in target.parent.glob(f"{_prefix(target, 'old')}*"):
        if target.exists():
            shutil.rmtree(old)
        else:
            old.rename(target)


def _clear_stale(target: Path) -> None:
    for part in target.parent.glob(f"{_prefix(target)}*"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > STALE_S and _unlocked(part):
                shutil.rmtree(part) if part.is_dir() else part.unlink()


def _unlocked(part: Path) -> bool:
    lock = os.open(part, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


TEXTS = (".yaml", ".yml", ".txt", ".md", ".csv")


def artefact(folder: str | Path, name: str, payload: Any) -> Path:
    """Write an artefact of a notebook into the run folder and return its path.

    The suffix of ``name`` selects the form: ``.json`` (NaN as null, infinity as ``"inf"``),
    ``.parquet`` (a frame), or a text file. An artefact of that name is replaced as a whole.
    Raises ValueError for another suffix, a name outside the folder, or a payload without that form.
    """
    path = _inside(Path(folder), name)
    write_file(path, _encoded(path, payload))
    return path


def read_artefact(folder: str | Path, name: str) -> Any:
    """Return the JSON value, frame or text of an artefact; DataError if it is not readable."""
    path = _inside(Path(folder), name)
    if not path.is_file():
        raise DataError("an artefact of an earlier notebook", where=path, value="nothing")
    try:
        return _decoded(path)
    except (OSError, ValueError) as err:
        raise DataError(f"a readable artefact ({err})", where=path) from err


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not name or not path.resolve().is_relative_to(folder.resolve()):
        msg = f"name must lie inside the run folder, got {name!r}"
        raise ValueError(msg)
    return path


def _encoded(path: Path, payload: Any) -> bytes:
    if path.suffix == ".json":
        return to_text(payload).encode()
    if path.suffix == ".parquet" and hasattr(payload, "to_parquet"):
        return _parquet(payload)
    if path.suffix in TEXTS and isinstance(payload, str):
        return payload.encode()
    msg = (
        f"name must end in .json, .parquet (a frame) or {', '.join(TEXTS)} (text), got {path.name}"
    )
    raise ValueError(msg)


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, compression="zstd")
    return buffer.getvalue()


def _decoded(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return path.read_text(encoding="utf-8")
