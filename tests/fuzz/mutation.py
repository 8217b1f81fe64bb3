"""Mutations of valid inputs: of bytes, of numbers, of JSON values and of records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import msgspec

NASTY: Final = [
    *[value.to_bytes(4, "big") for value in (0, 1, 3, 2**24, 2**31 - 1, 2**31, 2**32 - 1)],
    *[value.to_bytes(8, "big") for value in (0, 2**63 - 1, 2**63, 2**64 - 1)],
    *[value.to_bytes(2, "big") for value in (0, 0x7FFF, 0x8000, 0xFFFF)],
    *[b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\x00", b"\x01", b"\x02", b"\xff"],
    *[b"\xc3\x28", b"\xed\xa0\x80", b"\r\n", b"\x1b[2J", b" ", b"\\u0000", b"\\ud800"],
    *[b"NaN", b"1e999", b"-1e-400", b"null", b"true", b"{{", b"-", b"0.5", b"1_0"],
    *[b"9" * 30, b"9" * 400, b'{"$ref":"$"}', "１２".encode(), "\u2028".encode(), b";", b"%"],
]
NUMBERS: Final = [
    *[0, 1, -1, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32],
    *[-(2**31), -(2**31) - 1, 2**53, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30],
]
VALUES: Final[list[Any]] = [
    *NUMBERS,
    *[None, True, False, 0.5, -0.0, 1e308, "", " ", "a\nb\x1b[2J", "é中😀", "0", "-1", "true"],
    *["9" * 25, "1e5", "\x01\x02", [], {}, [[]], {"a": {}}, [None], {"": 0}, {"$ref": "$"}],
    *["{}", '{"topic":"t","brokerName":"b","queueId":1}', '{"topic":1}', "x" * 300],
]
DIGITS: Final = re.compile(rb"[0-9]+")
MAX_INPUT: Final = 64 * 1024

Mutate = Callable[[bytes], bytes]


def packed(value: int, size: int) -> bytes:
    """Return the lowest *size* bytes of *value*."""
    return (value % (1 << 8 * size)).to_bytes(size, "big")


class Mutator:
    """Mutates inputs by the choices of *random*."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._bytes: list[Mutate] = [
            self._overwrite,
            self._overwrite,
            self._insert,
            self._delete,
            self._truncate,
            self._add_to_number,
            self._repeat,
            self._digits,
            self._flip,
        ]

    def change(self, data: bytes, others: Sequence[bytes] = ()) -> bytes:
        """Return *data* with a few places changed, perhaps joined with one of *others*."""
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            data = self.random.choice(self._bytes)(data)
        if others and self.random.random() < 0.05:
            other = self.random.choice(others)
            cut = self.random.randint(0, len(data))
            data = data[:cut] + other[self.random.randint(0, len(other)) :]
        return data[:MAX_INPUT]

    def change_json(self, data: bytes) -> bytes:
        """Return the JSON text *data* with a value, a key or its dialect changed."""
        try:
            tree = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return self.change(data)
        for _ in range(self.random.choice((1, 1, 2))):
            tree = self.change_tree(tree)
        text = msgspec.json.encode(tree)
        if self.random.random() < 0.3:
            text = self._dialect(text)
        return text[:MAX_INPUT] if self.random.random() < 0.8 else self.change(text)

    def change_tree(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """Return *value* with one of the values inside changed."""
        random = self.random
        if not isinstance(value, dict | list) or not value or random.random() < 0.1:
            return self._other(value)
        if isinstance(value, list):
            copy = list(value)
            at = random.randrange(len(copy))
            self._change_list(copy, at)
            return copy
        table = dict(value)
        key = random.choice(list(table))
        choice = random.random()
        if choice < 0.1:
            del table[key]
        elif choice < 0.2:
            table[str(self._other(key))] = table.pop(key)
        elif choice < 0.25:
            table[key + "x"] = table[key]
        else:
            table[key] = self.change_tree(table[key])
        return table

    def _change_list(self, items: list[Any], at: int) -> None:
        choice = self.random.random()
        if choice < 0.1:
            del items[at]
        elif choice < 0.2:
            items.insert(at, items[at])
        elif choice < 0.22:
            items.extend([items[at]] * 50)
        else:
            items[at] = self.change_tree(items[at])

    def _other(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        if type(value) is int and self.random.random() < 0.3:
            return value + self.random.choice((-1, 1))
        if isinstance(value, str) and self.random.random() < 0.4:
            return self.change(value.encode()).decode("utf-8", "replace")
        return self.random.choice(VALUES)

    def _dialect(self, text: bytes) -> bytes:
        """Write some keys as fastjson does: bare numbers, and objects instead of their text."""
        if self.random.random() < 0.5:
            return re.sub(rb'"(-?[0-9]+)":', rb"\1:", text)
        return re.sub(rb'"(\{(?:[^"\\]|\\.)*\})":', lambda m: m[1].replace(b"\\", b"") + b":", text)

    # --- of bytes -------------------------------------------------------------------------------

    def _overwrite(self, data: bytes) -> bytes:
        new = self.random.choice(NASTY)
        at = self.random.randint(0, len(data))
        return data[:at] + new + data[at + len(new) :]

    def _insert(self, data: bytes) -> bytes:
        at = self.random.randint(0, len(data))
        return data[:at] + self.random.choice(NASTY) + data[at:]

    def _delete(self, data: bytes) -> bytes:
        at = self.random.randint(0, len(data))
        return data[:at] + data[at + self.random.choice((1, 1, 2, 4, 8, 40)) :]

    def _truncate(self, data: bytes) -> bytes:
        return data[: self.random.randint(0, len(data))]

    def _repeat(self, data: bytes) -> bytes:
        start = self.random.randint(0, len(data))
        end = min(len(data), start + self.random.choice((1, 2, 8, 32, 200)))
        times = self.random.choice((2, 2, 3, 20))
        return data[:start] + data[start:end] * times + data[end:]

    def _flip(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self.random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << self.random.randrange(8))]) + data[at + 1 :]

    def _add_to_number(self, data: bytes) -> bytes:
        """Change a binary number a little: lengths that almost fit."""
        size = self.random.choice((1, 2, 4, 8))
        if len(data) < size:
            return data
        at = self.random.randint(0, len(data) - size)
        value = int.from_bytes(data[at : at + size], "big") + self.random.choice((-4, -1, 1, 4, 97))
        return data[:at] + packed(value, size) + data[at + size :]

    def _digits(self, data: bytes) -> bytes:
        """Replace a number in a text."""
        found = list(DIGITS.finditer(data, self.random.randint(0, max(0, len(data) - 40))))
        if not found:
            return self._overwrite(data)
        start, end = self.random.choice(found).span()
        return data[:start] + str(self.random.choice(NUMBERS)).encode() + data[end:]

    def change_number(self, data: bytes, places: Sequence[tuple[int, int]]) -> bytes:
        """Return *data* with one of the numbers at *places*, (position, bytes), replaced."""
        at, size = self.random.choice(places)
        if at + size > len(data):
            return self.change(data)
        if self.random.random() < 0.3:
            value = int.from_bytes(data[at : at + size], "big") + self.random.choice((-1, 1, 2, -9))
        else:
            value = self.random.choice(NUMBERS)
        return data[:at] + packed(value, size) + data[at + size :]
