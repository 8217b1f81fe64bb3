"""Sets that keep their order: those of objects, whose hashes are addresses, differ between runs.

The order of strings in sets is fixed by PYTHONHASHSEED, see `__main__`.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator, MutableSet
from typing import Final, TypeVar

T = TypeVar("T", bound=Hashable)

PACKAGES: Final = ("anyio", "asyncio", "rocketmq_aio", "_weakrefset")


class OrderedSet(MutableSet[T]):
    """A set in the order of insertion."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"OrderedSet({list(self._items)})"

    def add(self, value: T) -> None:
        self._items[value] = None

    def discard(self, value: T) -> None:
        self._items.pop(value, None)

    def copy(self) -> OrderedSet[T]:
        return OrderedSet(self._items)

    def update(self, *others: Iterable[T]) -> None:
        for other in others:
            self._items.update(dict.fromkeys(other))

    def difference_update(self, *others: Iterable[T]) -> None:
        for other in others:
            for item in other:
                self.discard(item)

    def union(self, *others: Iterable[T]) -> OrderedSet[T]:
        made = self.copy()
        made.update(*others)
        return made

    def difference(self, *others: Iterable[T]) -> OrderedSet[T]:
        made = self.copy()
        made.difference_update(*others)
        return made

    def issubset(self, other: Iterable[T]) -> bool:
        return self <= OrderedSet(other)

    def issuperset(self, other: Iterable[T]) -> bool:
        return all(item in self._items for item in other)


def keep_order_of_sets() -> None:
    """Have ``set()`` of the loaded modules of `PACKAGES` make ordered sets from now on."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in PACKAGES:
            module.set = OrderedSet  # type: ignore[attr-defined]
