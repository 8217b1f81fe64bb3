"""Samples of a process: memory, descriptors, tasks, threads, and the sizes of tables."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rocketmq_aio.model.message import Message, MessageExt

PACKAGE: Final = "rocketmq_aio"
MIB: Final = 1024 * 1024
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
CONTAINERS: Final = (dict, list, set, deque)
LEAVES: Final = (Message, MessageExt)


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _MallocInfo


def process_figures() -> dict[str, float]:
    """Return the figures of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    malloc = _mallinfo2()
    return {
        "RSS MiB": pages * PAGE_BYTES / MIB,
        "malloc MiB": (malloc.uordblks + malloc.hblkhd) / MIB,
        "malloc free MiB": malloc.fordblks / MIB,
        "blocks": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
    }


def table_sizes(roots: Iterable[object]) -> dict[str, int]:
    """Return the total length of each container attribute of the objects behind *roots*.

    All objects of the package that attributes and containers lead to are included; messages are
    not looked into.
    """
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    left: list[object] = list(roots)
    while left:
        owner = left.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for name, value in _attributes(owner):
            if isinstance(value, asyncio.Queue):
                sizes[f"{type(owner).__name__}.{name}"] += value.qsize()
            elif isinstance(value, CONTAINERS):
                sizes[f"{type(owner).__name__}.{name}"] += len(value)
                left += _inside(value)
            elif _is_ours(value):
                left.append(value)
    return dict(sizes)


def _attributes(owner: object) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(owner, "__dict__", {}).items())
    for kind in type(owner).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(owner, name):
                yield name, getattr(owner, name)


def _inside(container: Any) -> list[object]:  # noqa: ANN401 - one of CONTAINERS
    """Return the objects of the package in *container*, also in tuples and lists inside."""
    found: list[object] = []
    left: list[object] = (
        list(container.values()) if isinstance(container, dict) else list(container)
    )
    for value in left:
        if isinstance(value, tuple | list | set | deque):
            found += [each for each in value if _is_ours(each)]
        elif isinstance(value, dict):
            found += [each for each in value.values() if _is_ours(each)]
        elif _is_ours(value):
            found.append(value)
    return found


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith(PACKAGE) and not isinstance(value, LEAVES)
