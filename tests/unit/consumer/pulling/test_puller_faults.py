"""The pull loop of a queue: what cannot be read, what fails, and at what pace it goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from rocketmq_aio.consumer.common.events import MessageUnreadable, PullFailed
from rocketmq_aio.consumer.pulling import puller as puller_module
from rocketmq_aio.errors import RequestTimeoutError
from rocketmq_aio.protocol.codes import V5_0_0, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from tests.fakes.connection import FakeConnection
from tests.fakes.script import Close, Outcome, Reply
from tests.unit.consumer.puller_env import ADDRESS, Rig, bodies, found, moved
from tests.unit.remoting.until import until

REPLICA: Final = "127.0.0.1:20911"

# --- what cannot be read -------------------------------------------------------------------------


def spoiled(rig: Rig) -> bytes:
    """Return three records of which the second cannot be read."""
    first, second, third = (stored.record for stored in rig.broker.messages("orders", 0))
    return first + second[:4] + b"\0\0\0\0" + second[8:] + third


@pytest.mark.usefixtures("impatient")
async def test_an_undecodable_message_holds_its_queue_with_an_event(rig: Rig) -> None:
    rig.put("a", "b", "c")
    rig.answer(found(3, spoiled(rig)), times=None)
    assigned = rig.begin()

    assert bodies(await rig.polled(1)) == ["a"]
    await until(lambda: rig.events, "an event")
    unreadable = rig.events[0]
    assert isinstance(unreadable, MessageUnreadable)
    assert (unreadable.queue, unreadable.offset) == (assigned.queue, 1)
    assert assigned.next_offset == 1


@pytest.mark.usefixtures("impatient")
async def test_an_undecodable_message_is_pulled_again(rig: Rig) -> None:
    rig.put("a", "b", "c")
    rig.answer(found(3, spoiled(rig)))
    rig.begin()

    assert bodies(await rig.polled(3)) == ["a", "b", "c"]
    assert [asked.queue_offset for asked in rig.wire.asked[:2]] == [0, 1]


async def test_an_undecodable_message_is_skipped_by_the_skip_policy_with_an_event(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(unreadable="skip")
    rig.put("a", "b", "c")
    rig.answer(found(3, spoiled(rig)))
    rig.answer(found(3, spoiled(rig)[len(rig.broker.messages("orders", 0)[0].record) :]))
    assigned = rig.begin()

    assert bodies(await rig.polled(2)) == ["a", "c"]
    [skipped] = rig.events
    assert isinstance(skipped, MessageUnreadable)
    assert (skipped.queue, skipped.offset, skipped.policy) == (assigned.queue, 1, "skip")
    assert [asked.queue_offset for asked in rig.wire.asked[:3]] == [0, 1, 2]


@pytest.mark.usefixtures("impatient")
async def test_an_undecodable_message_does_not_stop_other_queues(rig: Rig) -> None:
    rig.put("a", "b", "c")
    unreadable = found(3, spoiled(rig)[4:])

    def answer(command: Command, connection: FakeConnection) -> Outcome | Awaitable[Outcome]:
        first = command.ext_fields()["queueId"] == "0"
        return unreadable if first else rig.broker.answer(command, connection)

    rig.answer(answer, times=None)
    rig.begin(0)
    await until(lambda: rig.events, "an event")
    rig.put("x", queue_id=1)
    rig.begin(1)

    assert bodies(await rig.polled(1)) == ["x"]


@pytest.mark.parametrize(
    "answer",
    [
        Reply(0, {}),
        Reply(0, {"nextBeginOffset": "x"}),
        Reply(19, {}),
        Reply(21, {}),
        found(1, b"garbage"),
        found(1, b"\0" * 200),
        Reply(99, {}, remark="who knows"),
        Close(),
        None,
    ],
    ids=repr,
)
@pytest.mark.usefixtures("impatient")
async def test_pulling_continues_after_malformed_answers(rig: Rig, answer: object) -> None:
    rig.put("a")
    rig.answer(answer)
    assigned = rig.begin()

    assert bodies(await rig.polled(1)) == ["a"]
    failed = [event for event in rig.events if isinstance(event, PullFailed)]
    assert [event.queue for event in failed] == [assigned.queue]


@pytest.mark.usefixtures("impatient")
async def test_an_answer_with_an_earlier_next_offset_is_an_error(rig: Rig) -> None:
    rig.put(*map(str, range(5)))
    rig.starts.found = (4, False)
    rig.answer(found(2))
    assigned = rig.begin()

    assert bodies(await rig.polled(1)) == ["4"]
    assert assigned.committable >= 4


# --- pace ----------------------------------------------------------------------------------------


AT_ONCE = (
    found(0),
    found(0, code=ResponseCode.PULL_NOT_FOUND),
    found(0, code=ResponseCode.PULL_RETRY_IMMEDIATELY),
    Reply(ResponseCode.SYSTEM_BUSY),
    Reply(ResponseCode.FLOW_CONTROL),
    Reply(ResponseCode.SYSTEM_ERROR),
    Reply(ResponseCode.NO_PERMISSION),
    Reply(ResponseCode.SUBSCRIPTION_NOT_EXIST),
    Reply(ResponseCode.SUBSCRIPTION_NOT_LATEST),
    moved(0),
    moved(7),
    lambda command, _: moved(int(command.ext_fields()["queueOffset"]) + 1),
    Close(),
)


@pytest.mark.parametrize("answer", AT_ONCE)
async def test_immediate_answers_are_followed_by_a_pause(
    rig: Rig, pauses: list[float], answer: object
) -> None:
    rig.put("a")
    rig.answer(answer, times=None)
    rig.begin()
    await rig.pulled(11)

    passed = rig.wire.at[10] - rig.wire.at[0]  # what a slow machine took counts as a pause
    assert pauses[0] < 0.5
    assert passed + sum(pauses[:10]) > 0.5


async def test_retries_at_a_busy_broker_start_with_short_pauses(
    rig: Rig, pauses: list[float]
) -> None:
    rig.put("a")
    rig.answer(Reply(ResponseCode.FLOW_CONTROL))
    rig.begin()
    await rig.polled(1)

    assert 0 < pauses[0] < 0.1


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ],
)
async def test_a_broker_that_forgot_the_group_gets_one_heartbeat_for_all_queues(
    rig: Rig, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "HEARTBEAT_SECONDS", 3600.0)
    rig.put("a")
    rig.answer(Reply(code), times=4)
    for number in range(4):
        rig.begin(number)
    await rig.polled(1)

    assert rig.wire.beats == 1


@pytest.mark.usefixtures("impatient")
async def test_a_failure_is_published_once_until_pulling_works_again(rig: Rig) -> None:
    rig.answer(Reply(ResponseCode.NO_PERMISSION, remark="forbidden"), times=3)
    rig.put("a")
    assigned = rig.begin()
    await rig.polled(1)
    rig.answer(Close())
    rig.put("b")
    await rig.polled(1)
    rig.put("c")
    await rig.polled(1)

    assert rig.recovered == [assigned, assigned]
    reasons = [event.reason for event in rig.events if isinstance(event, PullFailed)]
    assert len(reasons) == 2
    assert "forbidden" in reasons[0]


# --- replicas ------------------------------------------------------------------------------------


def timed_out(_command: Command, _connection: FakeConnection) -> Outcome:
    raise RequestTimeoutError(REPLICA, RequestCode.LITE_PULL_MESSAGE, 30.0)


def suggest_replica(rig: Rig) -> None:
    """Let the master answer the first pull with "a" and suggest the replica."""
    rig.wire.addresses[1] = REPLICA
    rig.wire.broker_versions[REPLICA] = V5_0_0
    rig.put("a")
    record = rig.broker.messages("orders", 0)[0].record
    rig.answer(Reply(0, {**found(1).ext, "suggestWhichBrokerId": "1"}, record))


@pytest.mark.parametrize(
    "answer",
    [
        timed_out,
        Close(),
        Reply(ResponseCode.SYSTEM_ERROR),
        Reply(ResponseCode.SYSTEM_BUSY),
        Reply(ResponseCode.SUBSCRIPTION_NOT_EXIST),
        Reply(0, {**found(2).ext, "suggestWhichBrokerId": "1"}, b"garbage"),
        moved(0),
    ],
    ids=["timeout", "lost", "error", "busy", "subscription", "garbage", "moved"],
)
@pytest.mark.usefixtures("impatient")
async def test_a_pull_that_fails_at_a_replica_is_repeated_at_the_master(
    rig: Rig, answer: object
) -> None:
    suggest_replica(rig)
    rig.answer(answer)
    rig.begin()
    assert bodies(await rig.polled(1)) == ["a"]
    rig.put("b")

    assert bodies(await rig.polled(1)) == ["b"]
    assert rig.wire.addressed[:3] == [ADDRESS, REPLICA, ADDRESS]
    assert rig.corrected == []


@pytest.mark.usefixtures("impatient")
async def test_a_correction_by_a_replica_is_applied_without_a_master(rig: Rig) -> None:
    suggest_replica(rig)
    rig.begin()
    await rig.polled(1)
    del rig.wire.addresses[0]
    rig.usual()
    rig.answer(moved(0), times=2)
    await until(lambda: rig.corrected, "the correction")

    assert rig.corrected == [0]


@pytest.mark.usefixtures("impatient")
async def test_a_reset_returned_by_a_replica_is_applied_at_once(rig: Rig) -> None:
    suggest_replica(rig)
    reset = moved(0)
    rig.answer(Reply(reset.code, reset.ext, remark="OFFSET_RESET"))
    rig.begin()
    await until(lambda: rig.corrected, "the reset")

    assert rig.wire.addressed[:2] == [ADDRESS, REPLICA]


@pytest.mark.usefixtures("impatient")
async def test_the_master_is_asked_when_a_replica_cannot_be_reached(rig: Rig) -> None:
    rig.wire.addresses.clear()
    assigned = rig.begin()
    assigned.broker_id = 1
    await until(lambda: rig.events, "a failure")
    rig.put("a")
    rig.wire.addresses[0] = ADDRESS

    assert bodies(await rig.polled(1)) == ["a"]
    assert assigned.broker_id == 0
