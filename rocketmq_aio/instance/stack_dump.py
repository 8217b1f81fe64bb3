"""Stack dump of tasks and threads, for ``jstack`` of consumers."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

MAX_TASKS: Final = 1000
MAX_FRAMES: Final = 100


def all_stacks() -> str:
    """Return the stacks of the tasks of this loop and of all threads, without values."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    stacks = [
        _stack(f"task {task.get_name()}", list(_awaited(task.get_coro()))[::-1])
        for task in tasks[:MAX_TASKS]
    ]
    if len(tasks) > MAX_TASKS:
        stacks.append(f"... and {len(tasks) - MAX_TASKS} more tasks")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        stacks.append(_stack(f"thread {names.get(ident, ident)}", list(_called(frame))))
    return "\n\n".join(stacks)


def _stack(name: str, frames: list[FrameType]) -> str:
    """Return a stack as text, the innermost frame first."""
    return "\n".join([name, *map(_place, frames[:MAX_FRAMES])])


def _place(frame: FrameType) -> str:
    code, module = frame.f_code, frame.f_globals.get("__name__", "?")
    return f"    at {module}.{code.co_qualname}:{frame.f_lineno}"


def _called(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield *frame* and its callers; the outermost last."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(awaitable: Any) -> Iterator[FrameType]:  # noqa: ANN401 - whatever can be awaited
    """Yield the frame of a coroutine and of all that it awaits; the innermost last."""
    while awaitable is not None:
        frame, inner = _look_into(awaitable)
        if frame is None:
            return
        yield frame
        awaitable = inner


def _look_into(awaitable: Any) -> tuple[FrameType | None, Any]:  # noqa: ANN401
    for prefix, waits_for in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
        if hasattr(awaitable, waits_for):
            return getattr(awaitable, f"{prefix}_frame"), getattr(awaitable, waits_for)
    return None, None
