"""Fan-out: one call per item, up to a limit concurrently, failures by item."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

import anyio

from rocketmq_aio.errors import RocketMQError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Gathered(NamedTuple, Generic[K, V]):
    """Result of `gather_limited`: values and failures, each in the order of the items."""

    results: dict[K, V]
    failures: dict[K, RocketMQError]

    def complete(self) -> dict[K, V]:
        """Return the results of all calls; raises the first failure."""
        for error in self.failures.values():
            raise error
        return self.results


async def gather_limited(
    function: Callable[[K], Awaitable[V]],
    items: Iterable[K],
    limit: int | None = None,
    *,
    fail_fast: bool = False,
    final: tuple[type[RocketMQError], ...] = (),
) -> Gathered[K, V]:
    """Call *function* for each of *items*, up to *limit* concurrently, and wait for all.

    A `RocketMQError` goes to ``failures`` and does not stop the others unless *fail_fast* is set;
    any other error does.

    :param final: after such a failure, the items that were not begun fail with it, too
    :raises CancelledError: the caller, or one of the calls, was cancelled
    """
    items = list(dict.fromkeys(items))
    outcomes: dict[K, tuple[V] | RocketMQError] = {}
    waiting = iter(items)
    scope = anyio.CancelScope()

    async def work() -> None:
        for item in waiting:
            try:
                outcomes[item] = (await function(item),)
            except RocketMQError as error:
                others = waiting if isinstance(error, final) else ()
                outcomes.update(dict.fromkeys([item, *others], error))
                if fail_fast:
                    scope.cancel()
                    return

    if len(items) <= 1 or limit == 1:
        await work()
    else:
        with scope:
            async with anyio.create_task_group() as tasks:
                for _ in items[:limit]:
                    tasks.start_soon(work)
        # The group swallows a cancellation by foreign code.
        if len(outcomes) < len(items) and not scope.cancel_called:
            raise asyncio.CancelledError
    ordered = [(item, outcomes[item]) for item in items if item in outcomes]
    return Gathered(
        {item: each[0] for item, each in ordered if isinstance(each, tuple)},
        {item: each for item, each in ordered if not isinstance(each, tuple)},
    )
