"""Files and folders that are there as a whole or not at all, even after a crash.

What is being written carries a hidden name beside its final one and takes that name in one rename,
after everything has reached the disk. A killed writer leaves only a hidden part folder, which the
next writer of the same target clears away.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from capplan.schema import DataError

STALE_S = 60.0
"""A part folder younger than this is never cleared away, locked or not."""


def check_place(target: Path) -> None:
    """Check that a folder or file can come to be there; DataError names a file in its way."""
    above = next((path for path in target.parents if path.exists()), None)
    if above is not None and not above.is_dir():
        raise DataError("a folder, to hold what is written below it", where=above, value="a file")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that becomes ``target`` when the block ends well.

    When the block raises, nothing is left. Raises OSError when ``target`` is a folder that holds
    something by then.
    """
    with part_folder(target) as part:
        yield part
        settle(part)
        part.rename(target)
        _sync(target.parent)


@contextmanager
def part_folder(target: Path) -> Iterator[Path]:
    """Yield an empty hidden folder beside ``target``; what is left of it is removed at the end."""
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
    """Put a finished part folder in the place of ``target``, whatever ``target`` held before.

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
    """Write a file so that readers see the old content or all of the new, never a part."""
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
