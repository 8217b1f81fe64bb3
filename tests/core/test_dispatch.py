"""The compiled process queue and calls of handlers: agreement with Python, odd arguments."""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from time import monotonic
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given, strategies as st

from rocketmq_aio.consumer.pull_loop.process_queue import ProcessQueue
from rocketmq_aio.consumer.push.workers import AWAITABLE, RAISED, RETURNED, WAITS
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from tests.unit.cores import using

QUEUE: Final = MessageQueue("orders", "broker-a", 3)
Offsets: Final = st.integers(-(2**63), 2**65) | st.integers(-2, 12)
Puts: Final = st.lists(st.lists(st.tuples(Offsets, st.integers(0, 9)), max_size=6), max_size=4)


def message(offset: int, size: int = 1) -> MessageExt:
    return MessageExt("orders", bytes(size), QUEUE, offset, b"", b"")


def state(queue: ProcessQueue) -> tuple[Any, ...]:
    held = [(each.queue_offset, each.done) for each in queue._messages]
    return queue.count, queue.size_bytes, queue.first_offset, queue.span, held


@given(puts=Puts, marked=st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=4))
def test_process_queues_agree(
    built_core: ModuleType, puts: list[list[tuple[int, int]]], marked: list[list[int]]
) -> None:
    def run() -> list[tuple[Any, ...]]:
        queue, states, all_messages = ProcessQueue(), [], []
        for batch in puts:
            made = [message(offset, size) for offset, size in batch]
            all_messages += made
            states.append(([each.queue_offset for each in queue.put(made)], *state(queue)))
            for numbers in marked:
                chosen = [
                    all_messages[number % len(all_messages)] for number in numbers * bool(made)
                ]
                known = {id(each) for each in queue._messages}
                queue.mark_all_done([each for each in chosen if id(each) in known])
                states.append(state(queue))
        return states

    with using(built_core):
        compiled = run()
    with using(None):
        assert compiled == run()


@pytest.mark.parametrize(
    "arguments", [(), ((), 1), ([], "1"), ([object()], 1), ([SimpleNamespace(queue_offset="x")], 1)]
)
def test_measuring_other_arguments_raises(
    built_core: ModuleType, arguments: tuple[object, ...]
) -> None:
    with pytest.raises((TypeError, AttributeError, OverflowError)):
        built_core.measure_messages(*arguments)


@pytest.mark.parametrize("arguments", [(), ((), deque()), ([object()], deque()), ([], 1)])
def test_marking_other_arguments_raises(
    built_core: ModuleType, arguments: tuple[object, ...]
) -> None:
    with pytest.raises((TypeError, AttributeError)):
        built_core.mark_done(*arguments)


def test_marking_raises_what_a_held_object_raises(built_core: ModuleType) -> None:
    held = deque([SimpleNamespace(done=True, body=None)])

    with pytest.raises(TypeError):
        built_core.mark_done([], held)
    with pytest.raises(AttributeError):
        built_core.mark_done([], deque([object()]))


# --- calls of handlers --------------------------------------------------------------------------


@types.coroutine
def give(value: object) -> Generator[object, object, object]:
    return (yield value)


class Turn:
    """A turn of a worker."""

    def __init__(self, core: ModuleType, *offsets: int) -> None:
        self.core = core
        self.waiting = deque(message(offset) for offset in offsets)
        self.done: list[MessageExt] = []
        self.service = SimpleNamespace(suspended=False)
        self.workers = SimpleNamespace(size=1)
        self.cancelled = 0
        self.monotonic: Callable[[], object] = monotonic

    def run(
        self, handler: Callable[[MessageExt], object], limit: int = 10, due: float = float("inf")
    ) -> Any:  # noqa: ANN401 - a tuple or None
        return self.core.run_handlers(
            *(handler, self.waiting, self.done, limit, due, self.monotonic),
            *(lambda: self.cancelled, self.service, self.workers, 0),
        )

    @property
    def offsets(self) -> tuple[list[int], list[int]]:
        """Done, and waiting."""
        done, waiting = self.done, self.waiting
        return [each.queue_offset for each in done], [each.queue_offset for each in waiting]


async def succeed(_: MessageExt) -> None: ...


def test_messages_are_done_in_order_until_none_waits(built_core: ModuleType) -> None:
    turn = Turn(built_core, 1, 2, 3)

    assert turn.run(succeed) is None
    assert turn.offsets == ([1, 2, 3], [])


@pytest.mark.parametrize(("limit", "due"), [(2, float("inf")), (10, 2.0)])
def test_a_turn_ends_at_its_limits(built_core: ModuleType, limit: int, due: float) -> None:
    turn = Turn(built_core, 1, 2, 3)
    times = iter([1.0, 2.0])
    turn.monotonic = lambda: next(times)

    assert turn.run(succeed, limit, due) is None
    assert turn.offsets == ([1, 2], [3])


def test_a_turn_ends_when_the_handler_ends_it(built_core: ModuleType) -> None:
    def suspend(turn: Turn) -> None:
        turn.service.suspended = True

    def resize(turn: Turn) -> None:
        turn.workers.size = 0

    def drop(turn: Turn) -> None:
        turn.waiting.clear()

    for end in (suspend, resize, drop):
        turn = Turn(built_core, 1, 2)

        async def handle(
            _: MessageExt, turn: Turn = turn, end: Callable[[Turn], None] = end
        ) -> None:
            end(turn)

        assert turn.run(handle) is None
        assert turn.offsets[0] == [1]


@pytest.mark.parametrize("value", [False, 0, "later", NotImplemented])
def test_a_value_ends_the_turn(built_core: ModuleType, value: object) -> None:
    async def handle(each: MessageExt) -> object:
        return value if each.queue_offset == 2 else None

    turn = Turn(built_core, 1, 2, 3)
    first = turn.waiting[1]
    kind, stopped, _, returned, began = turn.run(handle)

    assert (kind, returned) == (RETURNED, value)
    assert stopped is first
    assert began <= monotonic()
    assert turn.offsets == ([1], [3])


def test_a_cancellation_of_the_task_ends_the_turn(built_core: ModuleType) -> None:
    turn = Turn(built_core, 1, 2)
    turn.cancelled = 1

    kind, stopped, _, value, _ = turn.run(succeed)
    assert (kind, stopped.queue_offset, value) == (RETURNED, 1, None)
    assert turn.offsets == ([], [2])


def test_a_coroutine_that_waits_is_returned(built_core: ModuleType) -> None:
    async def handle(_: MessageExt) -> object:
        return await give("waits")

    turn = Turn(built_core, 1)
    kind, _, coroutine, value, _ = turn.run(handle)

    assert (kind, value) == (WAITS, "waits")
    with pytest.raises(StopIteration) as ended:
        coroutine.send("result")
    assert ended.value.value == "result"


@pytest.mark.parametrize(
    "error", [LookupError("bad"), StopAsyncIteration(), GeneratorExit(), SystemExit(1)]
)
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_an_exception_is_returned_with_its_traceback(
    built_core: ModuleType, error: BaseException, plain: bool
) -> None:
    def fail(_: MessageExt) -> Coroutine[Any, Any, None]:
        raise error

    async def fail_later(_: MessageExt) -> None:
        raise error

    kind, _, _, value, _ = Turn(built_core, 1).run(fail if plain else fail_later)

    assert (kind, value) == (RAISED, error)
    assert value.__traceback__ is not None
    assert value.__context__ is None


@pytest.mark.parametrize("other", [5, None, give("x")])
def test_other_results_are_returned(built_core: ModuleType, other: object) -> None:
    kind, _, _, value, _ = Turn(built_core, 1).run(lambda _: other)

    assert kind == AWAITABLE
    assert value is other


def test_a_coroutine_that_was_awaited_before_is_refused(built_core: ModuleType) -> None:
    used = succeed(message(1))
    used.close()

    kind, _, _, value, _ = Turn(built_core, 1).run(lambda _: used)
    assert kind == RAISED
    assert isinstance(value, RuntimeError)


def test_a_clock_that_fails_takes_no_message(built_core: ModuleType) -> None:
    for clock in (lambda: 1 / 0, lambda: "now"):
        turn = Turn(built_core, 1)
        turn.monotonic = clock
        with pytest.raises((ZeroDivisionError, TypeError)):
            turn.run(succeed)
        assert turn.offsets == ([], [1])


@pytest.mark.parametrize("count", [0, 9, 11])
def test_wrong_numbers_of_arguments_raise(built_core: ModuleType, count: int) -> None:
    with pytest.raises(TypeError):
        built_core.run_handlers(*[None] * count)


@pytest.mark.parametrize("position", [1, 2, 3, 4, 7, 8, 9])
def test_other_arguments_raise(built_core: ModuleType, position: int) -> None:
    service, workers = SimpleNamespace(suspended=False), SimpleNamespace(size=1)
    arguments: list[Any] = [
        *(succeed, deque([message(1), message(2)]), [], 10, 9e9, monotonic),
        *(lambda: 0, service, workers, 0),
    ]
    arguments[position] = object()

    with pytest.raises((TypeError, AttributeError)):
        built_core.run_handlers(*arguments)


def test_calls_keep_no_references(built_core: ModuleType) -> None:
    async def handle(each: MessageExt) -> object:
        if each.queue_offset == 2:
            return await give(each)
        if each.queue_offset == 3:
            raise LookupError(each)
        return None

    def run(offset: int) -> None:
        stopped = Turn(built_core, offset).run(handle)
        if stopped is not None:
            stopped[2].close()

    def count() -> int:
        gc.collect()
        return sum(isinstance(each, Coroutine) for each in gc.get_objects())

    before = count()
    for offset in (1, 2, 3) * 20:
        run(offset)
    assert count() == before
