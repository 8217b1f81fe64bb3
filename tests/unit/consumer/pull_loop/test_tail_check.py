"""Tail check: which messages near the end of a queue are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from rocketmq_aio.consumer.pull_loop import tail_check as tail_check_module
from rocketmq_aio.consumer.pull_loop.tail_check import GAP_SECONDS, NEW_SECONDS, TailCheck
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.codes import ResponseCode
from tests.unit.consumer.parts import queue
from tests.unit.consumer.puller_env import PullerEnv, bodies, found

TAG: Final = "new"


def messages(*offsets: int) -> list[MessageExt]:
    return [MessageExt("orders", b"", queue(), offset, b"", b"") for offset in offsets]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time pass; a clock that stands otherwise."""
    now = 0.0

    def let_pass(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(tail_check_module, "monotonic", lambda: now)
    return let_pass


@pytest.mark.parametrize(
    ("offsets", "until"), [((5, 6, 7), 8), ((6, 7), 5), ((5, 7), 6), ((5, 6), 7), ((), 5)]
)
def test_a_gap_behind_the_first_end_is_waited_for(offsets: tuple[int, ...], until: int) -> None:
    check = TailCheck()
    check.read_until(messages(*range(5)), 0, 5, 5)

    assert check.read_until(messages(*offsets), 5, 8, 8) == until


@pytest.mark.parametrize("offsets", [(2, 7), (0, 3, 7), (7,)])
def test_a_gap_before_the_first_end_is_due_to_compaction(offsets: tuple[int, ...]) -> None:
    check = TailCheck()
    check.read_until((), 0, 0, 100)

    assert check.read_until(messages(*offsets), 0, 8, 100) == 8


def test_the_first_response_tells_nothing_of_gaps_before_its_messages() -> None:
    assert TailCheck().read_until(messages(3, 7), 0, 8, 8) == 8


@pytest.mark.parametrize("offsets", [(), (0, 3)])
def test_offsets_behind_the_messages_of_a_response_are_waited_for(offsets: tuple[int, ...]) -> None:
    check = TailCheck()
    check.read_until((), 0, 0, 100)
    until = offsets[-1] + 1 if offsets else 0

    assert check.read_until(messages(*offsets), 0, 8, 100) == until


def test_a_gap_is_waited_for_until_it_is_filled(passed: Callable[[float], None]) -> None:
    check = TailCheck()
    check.read_until(messages(0), 0, 1, 1)
    assert check.read_until((), 1, 2, 2) == 1
    passed(GAP_SECONDS / 2)

    assert check.read_until(messages(1, 2), 1, 3, 3) == 3


def test_a_gap_that_is_not_filled_is_passed_over(passed: Callable[[float], None]) -> None:
    check = TailCheck()
    check.read_until(messages(0), 0, 1, 1)
    assert check.read_until(messages(3), 1, 4, 4) == 1
    passed(GAP_SECONDS - 1)
    assert check.read_until(messages(3), 1, 4, 6) == 1
    passed(1)

    assert check.read_until(messages(3), 1, 4, 6) == 4


@pytest.mark.parametrize(("seconds", "until"), [(2 * NEW_SECONDS, 8), (0.0, 1)])
def test_offsets_are_new_for_a_while(
    passed: Callable[[float], None], seconds: float, until: int
) -> None:
    check = TailCheck()
    check.read_until((), 0, 0, 0)
    for _ in range(2):
        passed(seconds / 2)
        check.read_until(messages(0), 0, 1, 100)

    assert check.read_until(messages(7), 1, 8, 100) == until


def test_each_gap_is_waited_for_anew(passed: Callable[[float], None]) -> None:
    check = TailCheck()
    check.read_until((), 0, 0, 0)
    assert check.read_until((), 0, 1, 1) == 0
    passed(GAP_SECONDS)

    assert check.read_until(messages(0), 0, 2, 2) == 1


@pytest.mark.parametrize("code", [ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND])
async def test_a_message_that_is_listed_before_it_can_be_read_is_delivered(
    env: PullerEnv, code: int
) -> None:
    env.put("a", "b")
    env.respond(found(1, code=code), times=2)
    env.begin()

    assert bodies(await env.polled(2)) == ["a", "b"]
    assert [each.queue_offset for each in env.wire.pulls[:3]] == [0, 0, 0]


async def test_messages_before_a_gap_are_delivered_at_once(env: PullerEnv) -> None:
    env.put("a", "b", "c")
    first, _, third = (stored.record for stored in env.broker.messages("orders", 0))
    for response in (
        found(0, code=ResponseCode.PULL_NOT_FOUND),
        found(3, first + third),
        found(3, third),
    ):
        env.respond(response)
    env.begin()

    assert bodies(await env.polled(3)) == ["a", "b", "c"]
    assert [each.queue_offset for each in env.wire.pulls[:4]] == [0, 0, 1, 1]


async def test_offsets_that_a_filter_passed_over_are_not_pulled_again(env: PullerEnv) -> None:
    env.subscribe(TAG)
    env.put("a", tag="old")
    env.put("b", tag=TAG)
    env.respond(found(1, code=ResponseCode.PULL_RETRY_IMMEDIATELY))
    env.begin()

    assert bodies(await env.polled(1)) == ["b"]
    assert [each.queue_offset for each in env.wire.pulls[:2]] == [0, 1]
