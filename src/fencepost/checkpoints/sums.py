"""The sums of a file, all in one reading: ours (SHA-256), Spark's (CRC32C) and Hadoop's (CRC32 of every 512 bytes).

Never holds a whole file: state may be gigabytes.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import BinaryIO

from fencepost.ledger import Place

CHUNK = 1 << 20
HADOOP_MAGIC = b"crc\0"
HADOOP_EVERY = 512
"""Hadoop's own default, `file.bytes-per-checksum`; the side file says which it was."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one reading found."""

    size: int
    sha256: str
    crc32c: int | None = None
    hadoop: bytes | None = None


def measure(
    path: Place, *, crc32c: bool = False, hadoop_every: int | None = None, to: BinaryIO | None = None
) -> Measured:
    """Read a file once; with `to`, copy it on the way."""
    size, sha, crc, pieces = 0, hashlib.sha256(), 0, bytearray()
    # Whole pieces only: a piece that two chunks share would need to be carried over.
    chunk_size = CHUNK if not hadoop_every else max(1, CHUNK // hadoop_every) * hadoop_every
    with path.open("rb") as file:
        while chunk := file.read(chunk_size):
            size += len(chunk)
            sha.update(chunk)
            if crc32c:
                crc = crc32c_of(chunk, crc)
            if hadoop_every:
                for start in range(0, len(chunk), hadoop_every):
                    pieces += zlib.crc32(chunk[start : start + hadoop_every]).to_bytes(4, "big")
            if to is not None:
                _write(to, chunk)
    return Measured(size, sha.hexdigest(), crc if crc32c else None, bytes(pieces) if hadoop_every else None)


class NotWritten(Exception):
    """The copy failed, not the file that was read."""


def _write(to: BinaryIO, chunk: bytes) -> None:
    try:
        to.write(chunk)
    except OSError as error:
        raise NotWritten(error.strerror) from error


POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""

FOLD = (4323, 5259, 5685)
"""x^4323 + x^5259 + x^5685 = 1 modulo the reversed polynomial, so a bit may be moved to these three places behind it.
Squared, it holds for the doubled distances as well."""


def crc32c_of(data: bytes, before: int = 0) -> int:
    """CRC32C, going on from `before`.

    Python has none, and a table takes a minute for a gigabyte. As one large number whose lowest bit comes first, the
    front of the data is folded onto what follows it, by shifts of thousands of bits at once, until little is left.
    """
    little = 2 * FOLD[-1]
    number = int.from_bytes(data, "little")
    bits = 8 * len(data)
    if bits <= little:
        return _by_table(data, before)
    number ^= before ^ 0xFFFFFFFF
    times = 1
    while 2 * times * FOLD[-1] <= bits:
        times *= 2
    while times:
        near, middle, far = (times * distance for distance in FOLD)
        while bits >= near + far:
            front = number & ((1 << near) - 1)
            number >>= near
            number ^= front ^ (front << (middle - near)) ^ (front << (far - near))
            bits -= near
        times //= 2
    # The register went in with the first bits already, so here it begins with nothing.
    whole, rest = divmod(bits, 8)
    register = 0
    for _ in range(rest):
        bit = (register ^ number) & 1
        register = (register >> 1) ^ (POLYNOMIAL if bit else 0)
        number >>= 1
    return _by_table(number.to_bytes(whole, "little"), register ^ 0xFFFFFFFF)


def _by_table(data: bytes, before: int) -> int:
    register = before ^ 0xFFFFFFFF
    for byte in data:
        register = (register >> 8) ^ _TABLE[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_entry(byte) for byte in range(256)]
