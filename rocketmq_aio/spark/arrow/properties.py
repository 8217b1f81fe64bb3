"""Properties of many messages: their wire format to Arrow columns.

Splitting text in Python would cost more than the rest of the decoding, so Arrow splits the names
and values of a whole batch in one buffer.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

import pyarrow as pa

from rocketmq_aio.model.properties import NAME_END, PAIR_END, parse_properties
from rocketmq_aio.spark.arrow import Column, pc

MAX_BITS: Final = 48  # names with one bit each: 65 535 pairs of the last one do not overflow


@dataclass(eq=False)
class PropertyColumns:
    """Concatenated names and values of all rows; names are unique within a row.

    :ivar offsets: the index of the first pair of each row, and the number of pairs
    """

    names: Column
    values: Column
    offsets: Column

    def as_maps(self, kind: Column) -> Column:
        """Return a map of type *kind* for each row."""
        return pa.MapArray.from_arrays(self.offsets, self.names, self.values, kind)

    def pick(self, name: str) -> Column:
        """Return the value of *name* in each row, or null."""
        rows = len(self.offsets) - 1
        if self._shape is not None:
            if name not in self._shape:
                return pa.nulls(rows, pa.string())
            return self.values.take(pc.add(self.offsets.slice(0, rows), self._shape.index(name)))
        code = self._coded.dictionary.index(name).as_py()
        chosen = pc.equal(self._coded.indices, code)
        found = self.values.filter(chosen)
        if len(found) == rows:
            return found
        ones = pa.nulls(rows, pa.int64()).fill_null(1)
        numbers = pc.subtract(pc.cumulative_sum(ones), 1)
        return found.take(pc.index_in(numbers, value_set=self._rows().filter(chosen)))

    def has_duplicates(self) -> bool:
        """Whether a name occurs twice in a row."""
        if self._shape is not None:
            return len(set(self._shape)) < len(self._shape)
        if len(self._coded.dictionary) > MAX_BITS:
            key = pc.multiply(self._rows(), len(self._coded.dictionary))
            key = pc.add(key, self._coded.indices.cast(pa.int64()))
            return bool(pc.count_distinct(key).as_py() < len(key))
        # A sum of distinct powers of two has as many bits as summands.
        powers = pc.shift_left(pa.scalar(1, pa.uint64()), self._coded.indices.cast(pa.uint64()))
        sums = pc.cumulative_sum(powers)
        sums = pa.concat_arrays([pa.array([0], pa.uint64()), sums]).take(self.offsets)
        shapes = _differences(sums).dictionary_encode()
        bits = [each.bit_count() for each in shapes.dictionary.to_pylist()]
        expected = pa.array(bits, pa.int32()).take(shapes.indices)
        return not pc.all(pc.equal(expected, _differences(self.offsets))).as_py()

    @cached_property
    def _coded(self) -> Column:
        return self.names.dictionary_encode()

    @cached_property
    def _shape(self) -> list[str] | None:
        """The names of each row, in order; None if rows differ, which is rare for one producer."""
        rows, count = len(self.offsets) - 1, self.offsets[1].as_py()
        if not pc.all(pc.equal(_differences(self.offsets), count)).as_py():
            return None
        first = self.names.slice(0, count)
        again = array("i", range(count)).tobytes() * rows
        cycle = pa.Array.from_buffers(pa.int32(), count * rows, [None, pa.py_buffer(again)])
        return first.to_pylist() if self.names.equals(first.take(cycle)) else None

    def _rows(self) -> Column:
        """Return the row number of each pair."""
        lists = pa.ListArray.from_arrays(self.offsets, self.values)
        return pc.list_parent_indices(lists).cast(pa.int64())


def property_columns(raw: list[bytes]) -> PropertyColumns:
    """Return the properties of messages; the same result as `parse_properties`."""
    pairs = _cut(_texts(raw))
    return _parsed(raw) if pairs is None or pairs.has_duplicates() else pairs


def _texts(raw: list[bytes]) -> Column:
    try:
        return pa.array(raw, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # not all of it is UTF-8
        return pa.array([each.decode("utf-8", "replace") for each in raw], pa.string())


def _cut(texts: Column) -> PropertyColumns | None:
    """Return the pairs in *texts*; None if a name or value is empty."""
    pieces = pc.split_pattern(texts, PAIR_END)
    halves = pc.split_pattern(pieces.values, NAME_END, max_splits=1)
    # A piece without a value is not a pair: mostly the empty rest after the last separator.
    whole = pc.equal(_differences(halves.offsets), 2)
    at = halves.offsets.slice(0, len(whole)).filter(whole)
    names, values = halves.values.take(at), halves.values.take(pc.add(at, 1))
    if _has_empty(names) or _has_empty(values):
        return None
    before = pc.cumulative_sum(whole.cast(pa.int32()))
    before = pa.concat_arrays([pa.array([0], pa.int32()), before])
    return PropertyColumns(names, values, before.take(pieces.offsets))


def _has_empty(texts: Column) -> bool:
    return bool(pc.min(pc.binary_length(texts)).as_py() == 0)


def _parsed(raw: list[bytes]) -> PropertyColumns:
    parsed = [parse_properties(each) for each in raw]
    names = [name for each in parsed for name in each]
    values = [value for each in parsed for value in each.values()]
    offsets = pa.array(accumulate(map(len, parsed), initial=0), pa.int32(), size=len(raw) + 1)
    return PropertyColumns(pa.array(names, pa.string()), pa.array(values, pa.string()), offsets)


def _differences(numbers: Column) -> Column:
    return pc.subtract(numbers.slice(1), numbers.slice(0, len(numbers) - 1))
