"""gather_limited: concurrency, order, failures, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.remoting.gather import gather_limited


class Calls:
    """A function to call concurrently, which counts its running calls."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.ended: list[int] = []

    async def __call__(self, item: int) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.001 * (5 - item % 5))
            if item % 10 == 3:
                raise NotConnectedError(str(item), "down")
            return item * 2
        finally:
            self.running -= 1
            self.ended.append(item)


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (4, 4), (100, 12), (None, 12)])
async def test_concurrency_is_capped_by_the_limit(limit: int | None, most: int) -> None:
    calls = Calls()
    await gather_limited(calls, range(12), limit)
    assert calls.most == most


async def test_results_and_failures_come_by_item_in_the_order_of_the_items() -> None:
    results, failures = await gather_limited(Calls(), [4, 3, 2, 1, 13], 2)

    assert list(results.items()) == [(4, 8), (2, 4), (1, 2)]
    assert [str(each) for each in failures.values()] == [
        str(NotConnectedError("3", "down")),
        str(NotConnectedError("13", "down")),
    ]
    assert list(failures) == [3, 13]


async def test_complete_results_are_those_of_all_calls_or_the_first_failure() -> None:
    assert (await gather_limited(Calls(), [4, 2], 2)).complete() == {4: 8, 2: 4}

    with pytest.raises(NotConnectedError, match="3: down"):
        (await gather_limited(Calls(), [3, 4, 13], 2)).complete()


async def test_none_is_a_result() -> None:
    async def nothing(_: int) -> None:
        return None

    assert await gather_limited(nothing, [1, 2]) == ({1: None, 2: None}, {})


async def test_no_items_need_no_call() -> None:
    assert await gather_limited(Calls(), []) == ({}, {})


async def test_an_item_given_twice_is_called_once() -> None:
    calls = Calls()
    await gather_limited(calls, [1, 1, 2])
    assert sorted(calls.ended) == [1, 2]


@pytest.mark.parametrize("items", [[0], [0, 1, 2]])
async def test_cancelling_the_caller_ends_all_calls(items: list[int]) -> None:
    calls = Calls()
    task = asyncio.create_task(gather_limited(calls, items))
    await asyncio.sleep(0.0001)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert calls.running == 0


async def test_another_error_ends_the_other_calls() -> None:
    ended: list[int] = []

    async def fail(item: int) -> None:
        if item == 1:
            raise LookupError("a defect")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(item)

    with pytest.raises(ExceptionGroup) as raised:
        await gather_limited(fail, [0, 1, 2])
    assert raised.group_contains(LookupError)
    assert sorted(ended) == [0, 2]


@pytest.mark.parametrize(("items", "limit"), [([1], None), ([0, 1, 2], None), ([0, 1, 2], 1)])
async def test_a_call_cancelled_by_foreign_code_cancels_the_whole(
    items: list[int], limit: int | None
) -> None:
    foreign = asyncio.get_running_loop().create_future()
    foreign.cancel()

    async def call(item: int) -> None:
        if item == 1:
            await foreign

    with pytest.raises(asyncio.CancelledError):
        await gather_limited(call, items, limit)


@pytest.mark.parametrize("limit", [None, 2, 1])
async def test_fail_fast_ends_the_other_calls_and_keeps_results(limit: int | None) -> None:
    called: list[int] = []

    async def call(item: int) -> int:
        called.append(item)
        if item == 1:
            await asyncio.sleep(0)
            raise NotConnectedError(str(item), "down")
        if item > 1:
            await asyncio.sleep(60)
        return item

    results, failures = await gather_limited(call, range(100), limit, fail_fast=True)

    assert (results, list(failures)) == ({0: 0}, [1])
    assert limit is None or len(called) <= limit + 1


@pytest.mark.parametrize("limit", [1, 2])
async def test_items_that_are_not_begun_fail_with_a_final_failure(limit: int) -> None:
    begun: list[int] = []

    async def call(item: int) -> int:
        begun.append(item)
        await asyncio.sleep(0)
        if item == 3:
            raise NotConnectedError(str(item), "down")
        return item

    results, failures = await gather_limited(call, range(10), limit, final=(NotConnectedError,))

    assert 4 <= len(begun) <= 3 + limit
    assert set(results) == set(begun) - {3}
    assert set(failures) == set(range(10)) - set(results)
    assert len(set(failures.values())) == 1
