"""Opening trace files: compression by content, checksums, blocks of whole lines."""

from __future__ import annotations

import hashlib
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from capplan.schema import DataError

BLOCK_BYTES = 8 << 20
HEAD_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of a folder's files."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for file_path in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(file_path.relative_to(path).as_posix().encode())
        digest.update(bytes.fromhex(checksum(file_path)))
    return digest.hexdigest()


@contextmanager
def opened(path: Path) -> Iterator[ByteStream]:
    """Open a file for reading, decompressed; a byte order mark of UTF-8 is skipped.

    Raises :class:`DataError` if the file is absent, unreadable, incomplete in its compression, or
    UTF-16.
    """
    try:
        with path.open("rb") as raw, _decompressed(raw) as stream:
            head = stream.read(3)
            if head[:2] in _UTF16:
                raise DataError("UTF-8 text", where=path, value="UTF-16")
            yield ByteStream(b"" if head == _BOM else head, stream)
    except DataError:
        raise
    except FileNotFoundError as err:
        raise DataError("a file that exists", where=path) from err
    except (EOFError, zlib.error, lzma.LZMAError) as err:
        raise DataError("a complete compressed file", where=path, value=str(err)) from err
    except OSError as err:
        raise DataError("a readable file", where=path, value=str(err)) from err


@contextmanager
def _decompressed(raw: IO[bytes]) -> Iterator[Any]:
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        import gzip

        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream
    elif magic.startswith(b"\xfd7zXZ\x00"):
        with lzma.LZMAFile(raw) as stream:
            yield stream
    elif magic.startswith(b"BZh"):
        import bz2

        with bz2.BZ2File(raw) as stream:
            yield stream
    elif magic.startswith(b"\x28\xb5\x2f\xfd"):
        import pyarrow as pa

        with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd") as stream:
            yield stream
    else:
        yield raw


class ByteStream:
    """A stream with its first bytes put back; reads only."""

    def __init__(self, head: bytes, stream: Any) -> None:
        self._head = head
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes."""
        parts = [self._head if size < 0 else self._head[:size]]
        self._head = self._head[len(parts[0]) :]
        left = size - len(parts[0])
        while size < 0 or left > 0:
            part = self._stream.read() if size < 0 else self._stream.read(left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def head(path: Path) -> bytes:
    """Return the first bytes of the decompressed file."""
    with opened(path) as stream:
        return stream.read(HEAD_BYTES)


def line_count(block: bytes) -> int:
    r"""Return the lines of a block, blank ones too; the last may lack its line end.

    >>> line_count(b"a\nb")
    2
    """
    return block.count(b"\n") + (not block.endswith(b"\n"))


def blocks(stream: ByteStream, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    r"""Yield the stream in blocks that end with a line end, except perhaps the last.

    A last line without end belongs to the block before it, which shows how its numbers are written.
    Lines end with ``\n`` or ``\r\n``; a file whose lines end with a lone ``\r`` is one line.
    """
    held = rest = b""
    while part := stream.read(block_bytes):
        cut = part.rfind(b"\n") + 1
        if not cut:
            rest += part
            continue
        if held:
            yield held
        held, rest = rest + part[:cut], part[cut:]
    if held or rest:
        yield held + rest
