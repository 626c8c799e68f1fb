"""Bytes of a trace file, plain or gzip, in pieces: what is in the file decides, never its name."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

from latencylab.model.integrity import InputError

# Reading is streamed, so the limit is no matter of memory: it stops a crafted file from keeping a reader
# busy for hours. JSON of 4 GiB is several million events, beyond any capture that a viewer can open.
MAX_BYTES = 4 << 30
BLOCK = 1 << 20
_GZIP_PIECE = 16 << 10  # deflate expands at most 1032 times: one piece never gives over 17 MB
_Damaged: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # the stub is wrong
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"SQLite format 3\0": "an SQLite database (an Nsight Systems export?), no Kineto trace",
    b"\xfd7zXZ\0": "xz-compressed: unpack it first",
    b"\x28\xb5\x2f\xfd": "zstd-compressed: unpack it first",
    b"BZh": "bzip2-compressed: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "a Parquet file, no Kineto trace",
}


def open_regular(path: Path) -> BinaryIO:
    """The file opened for reading; InputError if it is missing, unreadable, empty or no regular file."""
    try:
        # A pipe or a device must not be opened at all: that may block for ever.
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            raise InputError(f"{path}: is a directory, not a trace file")
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path}: is no regular file")
        if info.st_size == 0:
            raise InputError(f"{path}: is empty")
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except PermissionError:
        raise InputError(f"{path}: permission denied") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{path}: cannot be read: {reason}") from None


def read_blocks(path: Path, max_bytes: int, notes: Counter[str]) -> Iterator[bytes]:
    """The file's text in blocks of about 1 MiB, inflated if it is gzip.

    A gzip stream that ends early or is damaged gives all that it still holds and is noted as `truncated`
    or `corrupt_gzip`. Raises InputError for other kinds of file, and for gzip data of over `max_bytes`.
    """
    with open_regular(path) as file:
        try:
            magic = file.read(16)
            for prefix, kind in _OTHERS.items():
                if magic.startswith(prefix):
                    raise InputError(f"{path}: is {kind}")
            file.seek(0)
            if magic.startswith(_GZIP):
                yield from _inflate(file, path, max_bytes, notes)
            else:
                while block := file.read(BLOCK):
                    yield block
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _inflate(file: BinaryIO, path: Path, max_bytes: int, notes: Counter[str]) -> Iterator[bytes]:
    parts: list[bytes] = []
    held = total = 0
    for part in _members(file, notes):
        held += len(part)
        total += len(part)
        if total > max_bytes:
            raise InputError(
                f"{path}: inflates beyond {max_bytes / 2**30:.3g} GiB, {file.tell() / 2**20:.1f} MiB into it;"
                " raise the limit if the file is to be trusted"
            )
        parts.append(part)
        if held >= BLOCK:
            yield b"".join(parts)
            parts, held = [], 0
    if parts:
        yield b"".join(parts)


def _members(file: BinaryIO, notes: Counter[str]) -> Iterator[bytes]:
    """Inflated pieces of all gzip members of the file."""
    stream = isal_zlib.decompressobj(31)
    member = 0  # offset of the current member
    rest = b""
    while piece := rest or file.read(_GZIP_PIECE):
        try:
            yield stream.decompress(piece)
        except _Damaged:
            notes["corrupt_gzip"] += 1
            yield _rescue(file, member, file.tell() - len(piece))
            return
        rest = b""
        if stream.eof:
            rest = stream.unused_data or file.read(_GZIP_PIECE)
            while rest and not rest.strip(b"\0"):  # padding is legal
                rest = file.read(_GZIP_PIECE)
            rest = rest.lstrip(b"\0")
            member = file.tell() - len(rest)
            if not rest:
                return
            if not rest.startswith(_GZIP[: len(rest)]):
                notes["trailing_data"] += 1
                return
            stream = isal_zlib.decompressobj(31)
    notes["truncated"] = 1


def _rescue(file: BinaryIO, member: int, at: int) -> bytes:
    """What the piece at offset `at` gives up to its damaged byte: an error loses the whole piece's text."""
    stream = isal_zlib.decompressobj(31)
    file.seek(member)
    left = at - member
    while left > 0:
        piece = file.read(min(_GZIP_PIECE, left))
        left -= len(piece)
        stream.decompress(piece)
    out = bytearray()
    with suppress(_Damaged):
        for byte in file.read(_GZIP_PIECE):
            out += stream.decompress(bytes((byte,)))
    return bytes(out)
