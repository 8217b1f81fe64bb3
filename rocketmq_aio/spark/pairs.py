"""The properties of many messages at once: their wire forms -> Arrow columns.

Cutting text in Python would cost more than everything else that is done with a message, so the
names and values of a whole batch are found by the separators in one buffer.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from rocketmq_aio.properties import parse_properties

Column = Any  # an Arrow array
pc: Any = pyarrow.compute  # its functions are made when it is imported: checkers see none

BETWEEN: Final = b"\x01"  # name and value
END: Final = b"\x02"  # of a pair
SEPARATORS: Final = BETWEEN + END
OTHERS: Final = bytes(each for each in range(256) if each not in SEPARATORS)
MAX_BITS: Final = 48  # names that have a bit each; room is left for 65 535 pairs of the last one


class Pairs:
    """Names and values, strings, of all rows after each other; no row has a name twice.

    :ivar offsets: where the pairs of each row begin, and where the last ones end
    """

    def __init__(self, names: Column, values: Column, offsets: Column) -> None:
        self.names = names
        self.values = values
        self.offsets = offsets
        self._coded = names.dictionary_encode()

    def as_maps(self, kind: Column) -> Column:
        """Return a map of type *kind* for each row."""
        return pa.MapArray.from_arrays(self.offsets, self.names, self.values, kind)

    def pick(self, name: str) -> Column:
        """Return the value of *name* in each row, null where there is none."""
        rows = len(self.offsets) - 1
        code = self._coded.dictionary.index(name).as_py()
        chosen = pc.equal(self._coded.indices, code)
        found = self.values.filter(chosen)
        if len(found) == rows:
            return found
        where = self._rows().filter(chosen)
        return found.take(pc.index_in(counted(rows), value_set=where))

    def has_doubles(self) -> bool:
        """Whether a row has a name twice."""
        if len(self._coded.dictionary) > MAX_BITS:
            key = pc.multiply(self._rows(), len(self._coded.dictionary))
            key = pc.add(key, self._coded.indices.cast(pa.int64()))
            return bool(pc.count_distinct(key).as_py() < len(key))
        # Powers of two that are all different add up to a number with as many bits.
        powers = pc.shift_left(pa.scalar(1, pa.uint64()), self._coded.indices.cast(pa.uint64()))
        sums = pc.cumulative_sum(powers)
        sums = pa.concat_arrays([pa.array([0], pa.uint64()), sums]).take(self.offsets)
        shapes = _differences(sums).dictionary_encode()
        bits = [each.bit_count() for each in shapes.dictionary.to_pylist()]
        expected = pa.array(bits, pa.int32()).take(shapes.indices)
        return not pc.all(pc.equal(expected, _differences(self.offsets))).as_py()

    def _rows(self) -> Column:
        """Return for each pair the number of its row."""
        lists = pa.ListArray.from_arrays(self.offsets, self.values)
        return pc.list_parent_indices(lists).cast(pa.int64())


def pairs_of(raw: list[bytes]) -> Pairs:
    """Return the properties of messages, read as `parse_properties` reads one."""
    if not {each[-1:] for each in raw} <= {b"", END}:  # brokers before 5.2 leave the last one out
        raw = [each if each[-1:] in (b"", END) else each + END for each in raw]
    joined = b"".join(raw)
    pairs = _cut(joined, [each.count(END) for each in raw]) if joined else None
    return _parsed(raw) if pairs is None or pairs.has_doubles() else pairs


def counted(count: int) -> Column:
    """Return 0 to *count* - 1, as 64-bit numbers."""
    ones = pa.nulls(count, pa.int64()).fill_null(1)
    return pc.subtract(pc.cumulative_sum(ones), 1)


def _cut(joined: bytes, counts: list[int]) -> Pairs | None:
    """Return the pairs; None where there is anything else, or a name or value is empty."""
    separators = joined.translate(None, OTHERS)
    count = len(separators)
    if separators != SEPARATORS * (count // 2):
        return None
    if not joined.isascii():
        joined = joined.decode("utf-8", "replace").encode()
    seen = pa.Array.from_buffers(pa.uint8(), len(joined), [None, pa.py_buffer(joined)])
    ends = pc.indices_nonzero(pc.less_equal(seen, END[0])).cast(pa.int64())
    if len(ends) != count:  # there are zero bytes besides
        return None
    # Without the separators a text ends as many bytes earlier as there were separators before it.
    ends = pc.subtract(ends, counted(count)).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    if pc.min(_differences(offsets)).as_py() <= 0:
        return None
    text = pa.py_buffer(joined.translate(None, SEPARATORS))
    texts = pa.Array.from_buffers(pa.string(), count, [None, offsets.buffers()[1], text])
    first = pc.multiply(counted(count // 2), 2)
    return Pairs(texts.take(first), texts.take(pc.add(first, 1)), _offsets(counts))


def _parsed(raw: list[bytes]) -> Pairs:
    parsed = [parse_properties(each) for each in raw]
    names = [name for each in parsed for name in each]
    values = [value for each in parsed for value in each.values()]
    counts = list(map(len, parsed))
    return Pairs(pa.array(names, pa.string()), pa.array(values, pa.string()), _offsets(counts))


def _offsets(counts: list[int]) -> Column:
    return pa.array(accumulate(counts, initial=0), pa.int32(), size=len(counts) + 1)


def _differences(numbers: Column) -> Column:
    return pc.subtract(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
