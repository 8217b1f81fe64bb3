"""Batch entries: the wire format of many rows at once, with repeatable message ids."""

from __future__ import annotations

import sys
from array import array
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa

from rocketmq_aio.model.properties import UNIQ_KEY, WAIT
from rocketmq_aio.producer.batching.explicit_batch import ENTRY_BYTES
from rocketmq_aio.protocol.record import decode_batch
from rocketmq_aio.spark.arrow import Column, pc

COUNTERS: Final = 0x1_0000  # the last four digits of an id
ENTRY_NUMBERS: Final = 5  # size, magic, checksum, flag, length of the body
NOTHING: Final = pa.scalar(b"")
ID_END: Final = pa.scalar(f"\x02{WAIT}\x01true\x02".encode())
ID_AT: Final = len(UNIQ_KEY) + 1  # offset in the properties of an entry
ID_LENGTH: Final = 32
ID_BYTES: Final = ID_AT + ID_LENGTH + len(ID_END.as_py())  # of the properties from `id_pieces`


def id_pieces(prefix: str, first_row: int, count: int) -> Column:
    """Return the properties of every row: its message id and the wait for a stored message.

    An id is *prefix* and the row number in 12 digits.  Tools take the four bytes before the last
    two for a time since the start of the month and search after it: these are small.
    """
    parts = []
    while count > 0:
        high, low = divmod(first_row, COUNTERS)
        some = min(count, COUNTERS - low)
        head = pa.scalar(f"{UNIQ_KEY}\x01{prefix}{high:08X}".encode())
        parts.append(join(head, _counters().slice(low, some), ID_END))
        first_row += some
        count -= some
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


@cache
def _counters() -> Column:
    return pa.array([b"%04X" % number for number in range(COUNTERS)], pa.binary())


def encode_entries(bodies: Column, properties: Column, flags: Column | None) -> Column:
    """Return the batch entry of each row; *flags* are 32-bit numbers."""
    body_lengths = pc.binary_length(bodies)
    lengths = pc.binary_length(properties)
    sizes = pc.add(pc.add(body_lengths, lengths), pa.scalar(ENTRY_BYTES, pa.int32()))
    count = len(bodies)
    heads = array("i", bytes(4 * ENTRY_NUMBERS * count))
    heads[0::ENTRY_NUMBERS] = raw_numbers(sizes, "i")
    if flags is not None:
        heads[3::ENTRY_NUMBERS] = raw_numbers(flags, "i")
    heads[4::ENTRY_NUMBERS] = raw_numbers(body_lengths, "i")
    tails = raw_numbers(pc.cast(lengths, pa.int16()), "h")
    head_bytes = _big_endian(heads, 4 * ENTRY_NUMBERS)
    return join(head_bytes, bodies, _big_endian(tails, 2), properties)


def raw_numbers(numbers: Column, kind: str) -> array[int]:
    """Return the numbers of a column; *kind* is the type code of their width."""
    return _read(numbers.buffers()[1], kind, numbers.offset, len(numbers))


def _read(buffer: Column | None, kind: str, first: int, count: int) -> array[int]:
    numbers = array(kind)
    if buffer is not None:
        width = numbers.itemsize
        numbers.frombytes(memoryview(buffer)[first * width : (first + count) * width])
    return numbers


def _big_endian(numbers: array[int], width: int) -> Column:
    if sys.byteorder == "little":
        numbers.byteswap()
    raw, kind = pa.py_buffer(numbers), pa.binary(width)
    fixed = pa.FixedSizeBinaryArray.from_buffers(kind, raw.size // width, [None, raw])
    return fixed.cast(pa.binary())


def join(*pieces: Column) -> Column:
    """Return the pieces of each row, joined without nulls."""
    return pc.binary_join_element_wise(*pieces, NOTHING, null_handling="skip")


def bytes_of(text: Column) -> bytes:
    """Return the concatenated bytes of *text*."""
    data, ends = text.buffers()[2], offsets_of(text)
    return bytes(memoryview(data)[ends[0] : ends[-1]]) if data is not None and ends else b""


def offsets_of(binary: Column) -> array[int]:
    """Return the start of each element in the data buffer, and the end of the last one."""
    return _read(binary.buffers()[1], "i", binary.offset, len(binary) + 1)


class BatchEntry(NamedTuple):
    """A decoded batch entry."""

    flag: int
    body: bytes
    properties: bytes

    @property
    def message_id(self) -> str:
        """The id from `id_pieces`."""
        return self.properties[ID_AT : ID_AT + ID_LENGTH].decode()


def read_entry(raw: bytes) -> BatchEntry:
    """Decode the first entry in *raw*."""
    return BatchEntry(*next(iter(decode_batch(raw))))
