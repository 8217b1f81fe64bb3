"""Stacks of tasks and threads, for administrators."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.instance import stack_dump as stacks_module
from rocketmq_aio.instance.stack_dump import all_stacks

SECRET = "a value that nobody should see"


async def inner(secret: str, released: asyncio.Event) -> str:
    await released.wait()
    return secret


async def outer(secret: str, released: asyncio.Event) -> str:
    return await inner(secret, released)


def stack_of(name: str, text: str) -> list[str]:
    """Return the lines below *name*."""
    (found,) = (stack for stack in text.split("\n\n") if stack.startswith(f"{name}\n"))
    return found.splitlines()[1:]


async def test_a_task_shows_where_it_waits_innermost_first_and_no_values() -> None:
    released = asyncio.Event()
    task = asyncio.get_running_loop().create_task(outer(SECRET, released), name="busy")
    await wait_all_tasks_blocked()

    text = all_stacks()
    released.set()

    places = [line.split(":")[0].rpartition(".")[2] for line in stack_of("task busy", text)]
    assert places[-2:] == ["inner", "outer"]
    assert places[0] == "wait"
    assert SECRET not in text
    assert await task == SECRET


async def numbers(released: asyncio.Event) -> AsyncIterator[int]:
    await released.wait()
    yield 1


async def test_unknown_awaitables_are_dumped_as_far_as_possible() -> None:
    released = asyncio.Event()

    async def in_generator() -> None:
        async for _ in numbers(released):
            return

    task = asyncio.get_running_loop().create_task(in_generator(), name="iterating")
    await wait_all_tasks_blocked()
    text = all_stacks()
    released.set()
    await task

    assert "in_generator" in stack_of("task iterating", text)[-1]


async def test_a_thread_shows_where_it_is() -> None:
    entered, released = threading.Event(), threading.Event()

    def blocking_handler() -> None:
        entered.set()
        released.wait()

    thread = threading.Thread(target=blocking_handler, name="worker")
    thread.start()
    await asyncio.to_thread(entered.wait)
    text = all_stacks()
    released.set()
    await asyncio.to_thread(thread.join)

    lines = stack_of("thread worker", text)
    handler = next(at for at, line in enumerate(lines) if "blocking_handler" in line)
    assert 0 < handler < len(lines) - 1  # it waits in threading, and threading called it


async def test_many_tasks_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks_module, "MAX_TASKS", 3)
    released = asyncio.Event()
    create = asyncio.get_running_loop().create_task
    tasks = [create(outer(SECRET, released), name=f"zz-{number}") for number in range(5)]
    await wait_all_tasks_blocked()

    text = all_stacks()
    released.set()
    await asyncio.gather(*tasks)

    assert text.count("task ") <= 5
    assert "more tasks" in text
