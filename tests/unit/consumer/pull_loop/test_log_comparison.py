"""LogComparison: new masters, and topics that are created again, during pulls and pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from anyio import wait_all_tasks_blocked
from msgspec.structs import replace

from rocketmq_aio.consumer.common.events import OffsetCorrected
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.pull_loop import log_comparison
from rocketmq_aio.consumer.pull_loop.log_check import LogCheck, StoredAt
from rocketmq_aio.consumer.pull_loop.log_comparison import RESCANNED_OFFSETS
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, QueueState, Start
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Outcome, Response
from rocketmq_aio.errors import (
    BrokerError,
    CodecError,
    PermissionDeniedError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketmq_aio.protocol.codes import MASTER_ID, ResponseCode
from rocketmq_aio.protocol.command import Command
from tests.unit.consumer.parts import queue
from tests.unit.consumer.puller_env import ADDRESS, PullerEnv, bodies, found, moved
from tests.unit.remoting.until import until

REPLICA: Final = "127.0.0.1:20911"


def create_again(env: PullerEnv) -> None:
    env.broker.clock.advance(1)
    env.broker.delete_topic("orders")
    env.broker.create_topic("orders", 4)


async def pause(env: PullerEnv, assigned: QueueState) -> None:
    assigned.paused = True
    env.broker.clock.advance(60)  # the hold ends
    await until(lambda: assigned.wake is not None, "the response")


def resume(assigned: QueueState) -> None:
    assigned.paused = False
    assigned.wake_puller()


@pytest.fixture
def always_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each pull count as held."""
    monkeypatch.setattr(log_comparison, "HELD_SECONDS", 0.0)
    monkeypatch.setattr(log_comparison, "SHORT_HOLD_SECONDS", 0.0)


async def check_read_again(env: PullerEnv, count: int) -> None:
    """Create the topic again during a held pull; all of its *count* messages are read."""
    create_again(env)
    new = [f"new {number}" for number in range(count)]
    env.put(*new)
    env.broker.clock.advance(60)  # the hold ends
    taken: list[str] = []
    while len(set(taken)) < count:
        taken += bodies(await env.polled(1))

    assert set(taken) == set(new)
    assert [type(event) for event in env.events] == [OffsetCorrected]


async def check_read_again_while_held(env: PullerEnv, count: int, before: int = 3) -> None:
    env.put(*map(str, range(before)))
    env.begin()
    await env.polled(before)
    await env.pulled(2)
    await check_read_again(env, count)


@pytest.mark.usefixtures("always_held")
@pytest.mark.parametrize(
    "error",
    [
        None,
        PermissionDeniedError(16, "no Get", ADDRESS),
        BrokerError(1, "not now", ADDRESS),
        CodecError("header", 0, "it has no timestamp"),
        RequestTimeoutError(ADDRESS, 32, 3.0),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("count", [2, 3, 5], ids=["fewer", "as many", "more"])
async def test_a_topic_created_again_while_a_pull_is_held_is_read_from_its_beginning(
    make_env: Callable[..., PullerEnv], count: int, error: RocketMQError | None
) -> None:
    """Its log may be as long as the former one, and the held pull continues in its middle."""
    env = make_env()
    env.wire.query_error = error
    await check_read_again_while_held(env, count)


@pytest.mark.usefixtures("always_held")
@pytest.mark.parametrize("count", [1, 2], ids=["as many", "more"])
async def test_a_topic_created_again_after_its_first_message_is_read_from_its_beginning(
    env: PullerEnv, count: int
) -> None:
    await check_read_again_while_held(env, count, before=1)


@pytest.mark.usefixtures("always_held")
async def test_a_seek_during_the_check_after_a_held_pull_wins(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[StoredAt] = []

    async def is_same(*_: object) -> bool:
        return False

    async def first_difference(_: object, __: str, last: StoredAt) -> int:
        checks.append(last)
        if len(checks) > 1:
            return last.offset + 1  # it is the same
        assigned.seek(4)
        return 0

    env.put("0", "1", "2")
    assigned = env.begin()
    await env.polled(3)
    await env.pulled(2)
    monkeypatch.setattr(env.puller._log_check, "is_same", is_same)
    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    env.put("3", "4")

    assert bodies(await env.polled(1)) == ["4"]
    assert env.events == []


@pytest.mark.usefixtures("always_held")
@pytest.mark.parametrize("count", [2, 3, 5], ids=["fewer", "as many", "more"])
async def test_logs_are_compared_also_for_an_account_that_may_only_pull(
    env: PullerEnv, count: int
) -> None:
    env.wire.query_error = env.wire.offset_error = PermissionDeniedError(16, "no Get", ADDRESS)
    await check_read_again_while_held(env, count)


@pytest.mark.usefixtures("always_held")
@pytest.mark.parametrize("count", [2, 3, 5], ids=["fewer", "as many", "more"])
async def test_a_topic_created_again_before_any_message_was_read_is_read_from_its_beginning(
    make_env: Callable[..., PullerEnv], count: int
) -> None:
    env = make_env()
    env.put("a", "b", "c")
    env.starts.found = Start(3)
    assigned = env.begin()
    await env.pulled(1)
    env.broker.clock.advance(60)  # the first hold ends
    await until(lambda: assigned.last_message is not None, "the message before the position")
    await env.pulled(3)
    create_again(env)
    new = [f"new {number}" for number in range(count)]
    env.put(*new)
    env.broker.clock.advance(60)

    assert bodies(await env.polled(count)) == new
    assert [type(event) for event in env.events] == [OffsetCorrected]


@pytest.mark.usefixtures("always_held")
async def test_a_new_expression_does_not_prevent_the_check_after_a_held_pull(
    env: PullerEnv,
) -> None:
    env.put("a", "b", "c")
    assigned = env.begin()
    await env.polled(3)
    await env.pulled(2)
    create_again(env)
    new = ["0", "1", "2", "3", "4"]
    env.put(*new)
    await pause(env, assigned)
    assigned.refetch()
    resume(assigned)

    assert bodies(await env.polled(5)) == new
    assert [type(event) for event in env.events] == [OffsetCorrected]


async def test_a_topic_created_again_while_a_queue_is_paused_is_read_from_its_beginning(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_comparison, "UNCHECKED_SECONDS", 0.0)
    env.put("a", "b", "c")
    assigned = env.begin()
    await env.polled(3)
    await env.pulled(2)
    await pause(env, assigned)
    create_again(env)
    new = ["0", "1", "2", "3", "4"]
    env.put(*new)
    resume(assigned)

    assert bodies(await env.polled(5)) == new
    assert [type(event) for event in env.events] == [OffsetCorrected]


async def test_a_queue_that_is_held_before_a_pull_keeps_its_position(
    make_env: Callable[..., PullerEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_comparison, "UNCHECKED_SECONDS", 0.0)
    env = make_env(offset_illegal="error")
    env.subscribe("wanted")
    env.put("a", "b", "c", tag="wanted")
    assigned = env.begin()
    await env.polled(3)
    await env.pulled(2)
    await pause(env, assigned)
    create_again(env)
    env.put("0", "1", "2", "3", "4", tag="other")  # a pull would pass them
    resume(assigned)
    await until(lambda: env.ready.failure() is not None, "the difference")
    await until(lambda: assigned.wake is not None, "the end of the turn")

    assert assigned.next_offset == 3


@pytest.mark.usefixtures("always_held")
@pytest.mark.parametrize("count", [2, 3, 5], ids=["fewer", "as many", "more"])
async def test_a_topic_created_again_during_the_first_pull_is_read_from_its_beginning(
    make_env: Callable[..., PullerEnv], count: int
) -> None:
    env = make_env()
    env.put("a", "b", "c")
    env.starts.found = Start(3)
    env.begin()
    await env.pulled(2)  # the message before the position, and the held pull
    await check_read_again(env, count)


@pytest.mark.usefixtures("always_held")
@pytest.mark.parametrize("count", [2, 3, 5], ids=["fewer", "as many", "more"])
async def test_a_topic_created_again_after_a_seek_is_read_from_its_beginning(
    make_env: Callable[..., PullerEnv], count: int
) -> None:
    env = make_env()
    env.put("a", "b", "c")
    assigned = env.begin()
    assert bodies(await env.polled(3)) == ["a", "b", "c"]
    assigned.move(3)
    await env.pulled(3)
    await wait_all_tasks_blocked()
    await check_read_again(env, count)


@pytest.mark.parametrize("checked", [False, True], ids=["first hold", "soon after a check"])
async def test_a_topic_created_again_during_a_short_pull_is_read_from_its_beginning(
    make_env: Callable[..., PullerEnv], monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Its new log may be longer than the old one before the pull ends."""
    monkeypatch.setattr(log_comparison, "UNCHECKED_SECONDS", 0.1)
    env = make_env()
    env.put("a", "b")
    env.begin()
    assert bodies(await env.polled(2)) == ["a", "b"]
    await asyncio.sleep(2 * log_comparison.SHORT_HOLD_SECONDS if checked else 0)
    env.put("c")
    assert bodies(await env.polled(1)) == ["c"]
    await asyncio.sleep(2 * log_comparison.SHORT_HOLD_SECONDS)
    create_again(env)
    env.put("d", "e", "f", "g")
    taken: list[str] = []
    while not {"d", "e", "f", "g"} <= set(taken):
        taken += bodies(await env.polled(1))
        env.put(f"later {len(taken)}")

    assert [type(event) for event in env.events] == [OffsetCorrected]


async def test_a_log_is_compared_once_in_a_while_however_many_short_pulls_end(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_comparison, "SHORT_HOLD_SECONDS", 0.0)
    monkeypatch.setattr(log_comparison, "UNCHECKED_SECONDS", 3600.0)
    env.begin()
    for number in range(10):
        env.put(f"{number}")
        assert bodies(await env.polled(1)) == [f"{number}"]

    assert env.wire.queries == 1


@pytest.mark.parametrize(
    "error", [BrokerError(1, "damaged", ADDRESS), RequestTimeoutError(ADDRESS, 11, 3.0)]
)
async def test_pulling_begins_without_the_message_before_the_position(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch, error: RocketMQError
) -> None:
    async def message_at(*_: object) -> None:
        raise error

    monkeypatch.setattr(LogCheck, "message_at", message_at)
    env.put("a", "b")
    env.starts.found = Start(1)
    env.begin()

    assert bodies(await env.polled(1)) == ["b"]


@pytest.mark.usefixtures("always_held")
async def test_pulls_that_a_slave_held_are_not_followed_by_a_query(env: PullerEnv) -> None:
    """While no route names a master, nothing can be compared."""
    env.wire.addresses = {1: REPLICA}
    env.put("a")
    env.begin()
    taken = await env.polled(1)
    env.put("b")
    taken += await env.polled(1)

    assert (bodies(taken), env.wire.queries) == (["a", "b"], 0)


@pytest.mark.usefixtures("always_held")
async def test_a_log_whose_beginning_is_deleted_is_the_same(env: PullerEnv) -> None:
    env.put("a", "b", "c")
    env.begin()
    await env.polled(3)
    env.broker.clock.advance(1)
    env.put("d")
    env.broker.topics["orders"].queues[0].drop_before(3)
    env.put("e")
    taken = await env.polled(2)

    assert (bodies(taken), env.events) == (["d", "e"], [])


async def test_pulls_that_are_not_held_cause_no_further_requests(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_comparison, "SHORT_HOLD_SECONDS", 3600.0)  # the machine may be busy
    env.begin()
    for number in range(5):
        env.put(f"{number}")
        await env.polled(1)

    assert env.wire.queries == 0


def refetch_in_first_comparison(
    env: PullerEnv, assigned: QueueState, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Have all logs differ; return the addresses of those that are compared."""
    compared: list[str] = []

    async def first_difference(_: object, address: str, __: object) -> int:
        compared.append(address)
        if len(compared) == 1:
            assigned.refetch()  # as a change of the subscription does
        return 0

    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    return compared


async def test_log_of_a_new_master_is_compared_again_when_the_position_changed_meanwhile(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.put("a")
    assigned = env.begin()
    await env.polled(1)
    compared = refetch_in_first_comparison(env, assigned, monkeypatch)
    env.instance.addresses[MASTER_ID] = REPLICA
    assigned.interrupt()
    await until(lambda: env.corrected, "a correction")

    assert compared == [REPLICA, REPLICA]


def shorter(env: PullerEnv) -> Callable[[Command, ServerConnection], Awaitable[Outcome]]:
    """Return a handler of pulls whose responses are those of a log that became shorter."""

    async def respond(command: Command, connection: ServerConnection) -> Outcome:
        response = await env.broker.execute(command, connection)
        assert isinstance(response, Response)
        return replace(response, ext={**response.ext, "maxOffset": "0"})

    return respond


async def test_filtered_messages_are_pulled_again_from_a_log_that_became_shorter(
    env: PullerEnv,
) -> None:
    """At their offsets it may have other messages, which match."""
    env.subscribe("wanted")
    env.put("a", tag="wanted")
    env.put("0", "1", "2", "3", tag="other")
    assigned = env.begin()
    await env.polled(1)
    await until(lambda: assigned.next_offset == 5, "the end")
    env.respond(shorter(env))
    assigned.interrupt()
    pulls = len(env.wire.pulls)
    await env.pulled(pulls + 1)
    env.put("b", tag="wanted")

    assert bodies(await env.polled(1)) == ["b"]
    offsets = [pull.queue_offset for pull in env.wire.pulls]
    assert 1 in offsets[offsets.index(5) :]
    assert (env.events, env.corrected) == ([], [])


@pytest.mark.parametrize(
    ("found_at", "filtered_from", "position", "differs_at"),
    [
        (None, 4, 10, None),
        (2, 4, 10, 2),
        (4, UNKNOWN, 10, None),
        (4, 4, 10, 4),
        (4, 4, 4 + RESCANNED_OFFSETS + 1, 5),
    ],
    ids=["deleted", "another log", "not filtered", "filtered", "many filtered"],
)
async def test_only_messages_that_may_differ_are_read_again(
    env: PullerEnv,
    monkeypatch: pytest.MonkeyPatch,
    found_at: int | None,
    filtered_from: int,
    position: int,
    differs_at: int | None,
) -> None:
    async def first_difference(*_: object) -> int | None:
        return found_at

    env.put("0", "1", "2", "3")
    assigned = env.begin()
    await env.polled(4)
    assigned.drop()
    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    assigned.next_offset, assigned.filtered_from = position, filtered_from
    logs = env.puller._logs

    assert await logs.first_difference(assigned, ADDRESS) == differs_at
    assigned.queue = queue(0, "__syslo__global__")
    assert await logs.first_difference(assigned, ADDRESS) is None


@pytest.mark.parametrize("start", [1, 2])
async def test_a_kept_position_before_the_difference_of_the_logs_stays(
    env: PullerEnv, start: int
) -> None:
    env.put("0", "1", "2", "3")
    before = env.begin()
    await env.polled(4)
    before.drop()
    env.broker.clock.advance(1)
    del env.broker.topics["orders"].queues[0].messages[2:]
    env.put("new 2", "new 3", "new 4")
    env.starts.found = Start(start, last_message=before.last_message)
    env.begin()

    expected = ["0", "1", "new 2", "new 3", "new 4"][start:]
    assert bodies(await env.polled(len(expected))) == expected
    assert env.events == []


async def test_a_seek_during_the_comparison_after_an_illegal_offset_wins(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_difference(*_: object) -> int:
        assigned.seek(2)
        return 0

    env.put("a", "b", "c")
    assigned = env.begin()
    await env.polled(3)
    await env.pulled(2)
    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    env.respond(moved(1))
    assigned.interrupt()

    assert bodies(await env.polled(1)) == ["c"]
    assert env.events == []


async def test_messages_before_the_difference_are_not_read_again_after_an_illegal_offset(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_difference(*_: object) -> int:
        return 2

    env.put("a", "b", "c")
    assigned = env.begin()
    await env.polled(3)
    await env.pulled(2)
    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    env.respond(moved(0))
    assigned.interrupt()

    assert bodies(await env.polled(1)) == ["c"]


async def lose_filtered(env: PullerEnv) -> PolledQueue:
    """Pull one message that matches and four that do not; have the broker lose these four."""
    env.subscribe("wanted")
    env.put("a", tag="wanted")
    env.put("0", "1", "2", "3", tag="other")
    assigned = env.begin()
    await env.polled(1)
    await until(lambda: assigned.next_offset == 5, "the end")
    del env.broker.topics["orders"].queues[0].messages[1:]
    return assigned


async def test_messages_that_took_the_place_of_lost_ones_that_were_filtered_out_are_read(
    env: PullerEnv,
) -> None:
    assigned = await lose_filtered(env)
    env.put("b", "c", tag="wanted")
    assigned.interrupt()

    assert bodies(await env.polled(2)) == ["b", "c"]


async def test_a_correction_to_the_beginning_reads_no_message_before_the_filtered_ones_again(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers of older 4.x versions correct to 0 if the log begins there, wherever it ends."""

    async def first_difference(*_: object) -> int:
        return 1  # after the last message

    assigned = await lose_filtered(env)
    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    response = moved(0)
    env.respond(replace(response, ext={**response.ext, "maxOffset": "1"}), times=1)
    assigned.interrupt()
    await until(lambda: assigned.next_offset == 1, "the correction")
    env.put("b", tag="wanted")

    assert bodies(await env.polled(1)) == ["b"]


async def test_a_limited_number_of_lost_ones_that_were_filtered_out_is_read_once_more(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_comparison, "RESCANNED_OFFSETS", 1)
    assigned = await lose_filtered(env)
    env.put("b", "c", tag="wanted")
    assigned.interrupt()
    await until(lambda: assigned.next_offset == 3, "the correction")
    env.put("d", tag="wanted")

    assert bodies(await env.polled(2)) == ["c", "d"]
    assert [type(event) for event in env.events] == [OffsetCorrected]


@pytest.mark.usefixtures("always_held")
async def test_a_log_that_ends_at_a_kept_position_is_not_compared_with_the_former_one_again(
    env: PullerEnv,
) -> None:
    env.put("0", "1", "2", "3")
    before = env.begin()
    await env.polled(4)
    before.drop()
    env.broker.clock.advance(1)
    del env.broker.topics["orders"].queues[0].messages[2:]
    env.starts.found = Start(2, last_message=before.last_message)
    env.begin()
    taken = []
    for body in ("new 2", "new 3", "new 4"):
        env.put(body)
        taken += bodies(await env.polled(1))

    assert taken == ["new 2", "new 3", "new 4"]
    assert env.events == []


async def test_a_replica_that_ended_before_the_position_is_not_read_behind_it(
    env: PullerEnv, pauses: list[float]
) -> None:
    """What it has there later is of another log."""
    env.put(*map(str, range(6)))
    env.starts.found = Start(5)
    env.wire.addresses = {1: REPLICA}
    env.respond(moved(3))
    env.respond(found(6, env.broker.messages("orders", 0)[5].record), times=None)
    assigned = env.begin()
    await until(lambda: len(pauses) > 3, "retries")

    assert (assigned.next_offset, env.cache.count) == (5, 0)


@pytest.mark.usefixtures("impatient")
async def test_a_replica_that_ended_before_the_position_is_read_again_after_a_master(
    env: PullerEnv,
) -> None:
    env.put(*map(str, range(6)))
    records = [each.record for each in env.broker.messages("orders", 0)]
    env.starts.found = Start(5)
    env.wire.addresses = {1: REPLICA}
    env.respond(moved(3), times=None)
    assigned = env.begin()
    await until(lambda: assigned.replica_ended, "the end of the replica")
    env.usual()
    env.wire.addresses = {MASTER_ID: ADDRESS, 1: REPLICA}
    assert bodies(await env.polled(1)) == ["5"]
    env.events.clear()
    env.wire.addresses = {1: REPLICA}
    env.respond(found(6, records[5]), times=None)
    assigned.seek(5)

    assert bodies(await env.polled(1)) == ["5"]
    assert env.events == []


@pytest.mark.usefixtures("impatient")
async def test_a_topic_that_was_missing_for_a_pull_is_read_from_its_beginning(
    env: PullerEnv,
) -> None:
    env.put("a", "b", "c")
    assigned = env.begin()
    await env.polled(3)
    await env.pulled(2)
    env.respond(Response(ResponseCode.TOPIC_NOT_EXIST))
    assigned.interrupt()
    await until(lambda: env.events, "the failure")
    create_again(env)
    new = [str(number) for number in range(5)]
    env.put(*new)

    assert bodies(await env.polled(5)) == new


async def test_a_queue_that_is_held_by_a_response_keeps_its_position(
    make_env: Callable[..., PullerEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_difference(*_: object) -> int:
        return 0

    env = make_env(offset_illegal="error")
    env.put("a")
    assigned = env.begin()
    await env.polled(1)
    await env.pulled(2)
    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    env.respond(shorter(env))
    assigned.interrupt()
    await env.pulled(3)
    env.put("b")
    await until(lambda: env.ready.failure() is not None, "the difference")
    await until(lambda: assigned.wake is not None, "the end of the turn")

    assert (assigned.next_offset, env.cache.count) == (1, 0)


async def test_a_log_that_became_shorter_is_compared_again_when_the_position_changed_meanwhile(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.put("a")
    assigned = env.begin()
    await env.polled(1)
    await env.pulled(2)
    compared = refetch_in_first_comparison(env, assigned, monkeypatch)
    env.respond(shorter(env), times=None)
    env.put("b")
    await env.pulled(3)
    env.put("c")
    await until(lambda: env.corrected, "a correction")

    assert compared == [ADDRESS, ADDRESS]


async def test_log_of_a_new_master_is_compared_again_when_its_correction_was_superseded(
    make_env: Callable[..., PullerEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []

    async def first_difference(_: object, address: str, __: object) -> int:
        compared.append(address)
        return 0

    async def offset_of(_: object, start: str) -> int:
        if len(compared) == 1:
            assigned.refetch()
        return 0

    env = make_env(offset_illegal="earliest")
    env.put("a")
    assigned = env.begin()
    await env.polled(1)
    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    monkeypatch.setattr(env.starts, "offset_of", offset_of)
    env.instance.addresses[MASTER_ID] = REPLICA
    assigned.interrupt()
    await until(lambda: env.corrected, "a correction")

    assert compared == [REPLICA, REPLICA]
