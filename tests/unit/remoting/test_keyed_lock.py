"""KeyedLock: one holder per key, in order of arrival, whatever is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.remoting.keyed_lock import KeyedLock


async def test_a_key_acquired_in_the_step_of_a_cancellation_is_passed_on() -> None:
    turns = KeyedLock[str]()
    assert turns.try_acquire("k")
    second = asyncio.create_task(turns.wait_and_acquire("k"))
    third = asyncio.create_task(turns.wait_and_acquire("k"))
    await asyncio.sleep(0)
    turns.release("k")
    second.cancel()
    await asyncio.wait([second])
    await third
    turns.release("k")

    assert len(turns) == 0


async def test_blocks_with_one_key_run_in_order_and_others_beside_them() -> None:
    lock = KeyedLock[str]()
    begun: list[int] = []
    go_on = asyncio.Event()

    async def run(number: int) -> None:
        async with lock.hold("k"):
            begun.append(number)
            await go_on.wait()

    tasks = [asyncio.create_task(run(number)) for number in range(3)]
    await asyncio.sleep(0)
    async with lock.hold("another"):
        assert begun == [0]
    go_on.set()
    await asyncio.gather(*tasks)

    assert begun == [0, 1, 2]
    assert len(lock) == 0


@pytest.mark.parametrize("which", [0, 1])
async def test_a_cancelled_or_failed_block_releases_its_key(which: int) -> None:
    lock = KeyedLock[str]()

    async def run() -> None:
        async with lock.hold("k"):
            await asyncio.sleep(0.01)
            raise LookupError

    tasks = [asyncio.create_task(run()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[which].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    expected: list[type[BaseException]] = [LookupError] * 3
    expected[which] = asyncio.CancelledError
    assert [type(each) for each in outcomes] == expected
    assert len(lock) == 0
