"""Puller: undecodable messages, failures and pauses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Final

import pytest
from msgspec.structs import replace

from rocketmq_aio.consumer.common.events import MessageUnreadable, PullFailed
from rocketmq_aio.consumer.pull_loop import flow_control, puller as puller_module
from rocketmq_aio.consumer.pull_loop.log_check import StoredAt
from rocketmq_aio.consumer.pull_loop.queue_state import Start
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Close, Outcome, Response
from rocketmq_aio.errors import NotConnectedError, RequestTimeoutError
from rocketmq_aio.protocol.codes import MASTER_ID, V5_0_0, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from tests.unit.consumer.puller_env import ADDRESS, PullerEnv, bodies, found, moved, reset_to
from tests.unit.remoting.until import until

REPLICA: Final = "127.0.0.1:20911"


def spoiled(env: PullerEnv) -> bytes:
    """Return three records of which the second cannot be read."""
    first, second, third = (stored.record for stored in env.broker.messages("orders", 0))
    return first + second[:4] + b"\0\0\0\0" + second[8:] + third


def spoiling(
    env: PullerEnv, offset: int
) -> Callable[[Command, ServerConnection], Awaitable[Outcome]]:
    """Return a handler of pulls whose responses have the message at *offset* damaged."""
    record = env.broker.messages("orders", 0)[offset].record
    damaged = record[:4] + b"\0\0\0\0" + record[8:]

    async def respond(command: Command, connection: ServerConnection) -> Outcome:
        response = await env.broker.execute(command, connection)
        assert isinstance(response, Response)
        return replace(response, body=response.body.replace(record, damaged))

    return respond


@pytest.mark.usefixtures("impatient")
async def test_an_undecodable_message_holds_its_queue_with_an_event(env: PullerEnv) -> None:
    env.put("a", "b", "c")
    env.respond(spoiling(env, 1), times=None)
    assigned = env.begin()

    assert bodies(await env.polled(1)) == ["a"]
    await until(lambda: env.events, "an event")
    unreadable = env.events[0]
    assert isinstance(unreadable, MessageUnreadable)
    assert (unreadable.queue, unreadable.offset) == (assigned.queue, 1)
    assert assigned.next_offset == 1


@pytest.mark.usefixtures("impatient")
async def test_an_undecodable_message_is_pulled_again(env: PullerEnv) -> None:
    env.put("a", "b", "c")
    env.respond(found(3, spoiled(env)))
    env.begin()

    assert bodies(await env.polled(3)) == ["a", "b", "c"]
    assert [requests.queue_offset for requests in env.wire.pulls[:2]] == [0, 1]


async def test_an_undecodable_message_is_skipped_by_the_skip_policy_with_an_event(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(unreadable="skip")
    env.put("a", "b", "c")
    env.respond(spoiling(env, 1), times=None)
    assigned = env.begin()

    assert bodies(await env.polled(2)) == ["a", "c"]
    [skipped] = env.events
    assert isinstance(skipped, MessageUnreadable)
    assert (skipped.queue, skipped.offset, skipped.policy) == (assigned.queue, 1, "skip")
    assert [requests.queue_offset for requests in env.wire.pulls[:4]] == [0, 1, 1, 2]


async def test_an_undecodable_message_behind_filtered_ones_is_skipped_at_once(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(unreadable="skip")
    env.subscribe("new")
    env.put(*map(str, range(40)), tag="old")
    env.put("a", "b", tag="new")
    env.respond(spoiling(env, 40), times=None)
    env.begin()

    assert bodies(await env.polled(1)) == ["b"]
    [skipped] = env.events
    assert isinstance(skipped, MessageUnreadable)
    assert skipped.offset == 40


@pytest.mark.usefixtures("impatient")
async def test_the_event_of_a_held_queue_has_the_offset_behind_filtered_messages(
    env: PullerEnv,
) -> None:
    env.subscribe("new")
    env.put(*map(str, range(40)), tag="old")
    env.put("a", "b", tag="new")
    env.respond(spoiling(env, 40), times=None)
    assigned = env.begin()
    await until(lambda: env.events, "an event")
    held = env.events[0]

    assert isinstance(held, MessageUnreadable)
    assert (held.offset, assigned.next_offset) == (40, 0)


@pytest.mark.parametrize("policy", ["hold", "skip"])
@pytest.mark.usefixtures("impatient")
async def test_an_undecodable_message_whose_offset_is_unknown_is_pulled_again(
    make_env: Callable[..., PullerEnv], policy: str
) -> None:
    env = make_env(unreadable=policy)
    env.put("a", "b", "c")
    env.respond(found(3, spoiled(env)[4:]))
    env.respond(Response(ResponseCode.SYSTEM_BUSY))
    env.begin()

    assert bodies(await env.polled(3)) == ["a", "b", "c"]
    assert not any(isinstance(event, MessageUnreadable) for event in env.events)


async def test_a_message_that_was_damaged_on_its_way_is_not_skipped(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(unreadable="skip")
    env.put("a", "b", "c")
    env.respond(spoiling(env, 0))
    env.begin()

    assert bodies(await env.polled(3)) == ["a", "b", "c"]
    assert [type(event) for event in env.events] == [PullFailed]


async def test_a_message_that_is_damaged_at_a_slave_is_pulled_from_the_master(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(unreadable="skip")
    suggest_replica(env)
    env.put("b")
    spoil = spoiling(env, 1)

    async def respond(command: Command, connection: ServerConnection) -> Outcome:
        if env.wire.addressed[-1] != REPLICA:
            return await env.broker.execute(command, connection)
        response = await spoil(command, connection)
        assert isinstance(response, Response)
        return replace(response, ext={**response.ext, "suggestWhichBrokerId": "1"})

    env.respond(respond, times=None)
    env.begin()

    assert bodies(await env.polled(2)) == ["a", "b"]
    assert [type(event) for event in env.events] == [PullFailed]


async def test_a_message_that_is_damaged_at_a_slave_is_skipped_without_a_master(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(unreadable="skip")
    env.put("a", "b")
    env.wire.addresses = {1: REPLICA}
    env.respond(spoiling(env, 0), times=None)
    env.begin()

    assert bodies(await env.polled(1)) == ["b"]
    assert [type(event) for event in env.events] == [MessageUnreadable]


async def test_a_seek_while_an_undecodable_message_is_located_is_followed(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(unreadable="skip")
    env.put("a", "b", "c")
    spoil = spoiling(env, 0)

    async def respond(command: Command, connection: ServerConnection) -> Outcome:
        if command.ext_fields()["maxMsgNums"] == "1":
            assigned.seek(2)
        return await spoil(command, connection)

    env.respond(respond, times=None)
    assigned = env.begin()

    assert bodies(await env.polled(1)) == ["c"]
    assert env.events == []


@pytest.mark.usefixtures("impatient")
async def test_an_undecodable_message_does_not_stop_other_queues(env: PullerEnv) -> None:
    env.put("a", "b", "c")
    unreadable = found(3, spoiled(env)[4:])

    def respond(command: Command, connection: ServerConnection) -> Outcome | Awaitable[Outcome]:
        first = command.ext_fields()["queueId"] == "0"
        return unreadable if first else env.broker.process(command, connection)

    env.respond(respond, times=None)
    env.begin(0)
    await until(lambda: env.events, "an event")
    env.put("x", queue_id=1)
    env.begin(1)

    assert bodies(await env.polled(1)) == ["x"]


@pytest.mark.parametrize(
    "response",
    [
        Response(0, {}),
        Response(0, {"nextBeginOffset": "x"}),
        Response(19, {}),
        Response(21, {}),
        found(10**30),
        found(10**30, code=19),
        moved(-1),
        moved(10**30),
        found(1, b"garbage"),
        found(1, b"\0" * 200),
        Response(99, {}, remark="who knows"),
        Close(),
        None,
    ],
    ids=repr,
)
@pytest.mark.usefixtures("impatient")
async def test_pulling_continues_after_malformed_responses(
    env: PullerEnv, response: object
) -> None:
    env.put("a")
    env.respond(response)
    assigned = env.begin()

    assert bodies(await env.polled(1)) == ["a"]
    failed = [event for event in env.events if isinstance(event, PullFailed)]
    assert [event.queue for event in failed] == [assigned.queue]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND])
async def test_an_answer_with_an_earlier_next_offset_moves_no_position_back(
    env: PullerEnv, code: int
) -> None:
    env.put(*map(str, range(5)))
    env.starts.found = Start(4)
    env.respond(found(2, code=code))
    assigned = env.begin()

    assert bodies(await env.polled(1)) == ["4"]
    assert assigned.committable >= 4


@pytest.mark.parametrize(
    ("response", "looked_up"),
    [
        (found(0, code=ResponseCode.PULL_NOT_FOUND), []),
        (found(0, code=ResponseCode.PULL_RETRY_IMMEDIATELY), ["orders"]),
        (Response(ResponseCode.NOT_LEADER_FOR_QUEUE), ["orders"]),
        (Response(ResponseCode.SYSTEM_ERROR), []),
    ],
    ids=["end", "slave", "static", "error"],
)
async def test_the_route_is_looked_up_if_the_broker_is_not_the_master_of_the_queue(
    env: PullerEnv, response: Response, looked_up: list[str]
) -> None:
    """Otherwise the queue would wait for the regular refresh to find its new master."""
    env.respond(response)
    env.begin()
    await env.pulled(2)

    assert env.wire.invalidated == looked_up


AT_ONCE = (
    found(0),
    found(0, code=ResponseCode.PULL_NOT_FOUND),
    found(0, code=ResponseCode.PULL_RETRY_IMMEDIATELY),
    Response(ResponseCode.SYSTEM_BUSY),
    Response(ResponseCode.FLOW_CONTROL),
    Response(ResponseCode.SYSTEM_ERROR),
    Response(ResponseCode.NO_PERMISSION),
    Response(ResponseCode.SUBSCRIPTION_NOT_EXIST),
    Response(ResponseCode.SUBSCRIPTION_NOT_LATEST),
    moved(0),
    moved(7),
    lambda command, _: moved(int(command.ext_fields()["queueOffset"]) + 1),
    Close(),
)


@pytest.mark.parametrize("response", AT_ONCE)
async def test_immediate_answers_are_followed_by_a_pause(
    env: PullerEnv, pauses: list[float], response: object
) -> None:
    env.put("a")
    env.respond(response, times=None)
    env.begin()
    await env.pulled(11)

    passed = env.wire.at[10] - env.wire.at[0]  # what a slow machine took counts as a pause
    assert pauses[0] < 0.5
    assert passed + sum(pauses[:10]) > 0.5


async def test_retries_at_a_busy_broker_start_with_short_pauses(
    env: PullerEnv, pauses: list[float]
) -> None:
    env.put("a")
    env.respond(Response(ResponseCode.FLOW_CONTROL))
    env.begin()
    await env.polled(1)

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
    env: PullerEnv, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "HEARTBEAT_SECONDS", 3600.0)
    env.put("a")
    env.respond(Response(code), times=4)
    for number in range(4):
        env.begin(number)
    await env.polled(1)

    assert env.wire.beats == 1


@pytest.mark.usefixtures("impatient")
async def test_a_failure_is_published_once_until_pulling_works_again(env: PullerEnv) -> None:
    env.respond(Response(ResponseCode.NO_PERMISSION, remark="forbidden"), times=3)
    env.put("a")
    assigned = env.begin()
    await env.polled(1)
    env.respond(Close())
    env.put("b")
    await env.polled(1)
    env.put("c")
    await env.polled(1)

    assert env.recovered == [assigned, assigned]
    reasons = [event.reason for event in env.events if isinstance(event, PullFailed)]
    assert len(reasons) == 2
    assert "forbidden" in reasons[0]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("seconds", "outcome", "is_cut_off"),
    [
        (0.0, Close(), True),
        (60.0, Close(), False),
        (0.0, Response(ResponseCode.NO_PERMISSION), False),
    ],
    ids=["long", "short", "refused"],
)
async def test_the_owner_is_called_for_a_queue_that_was_long_without_a_response(
    env: PullerEnv,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    outcome: Close | Response,
    is_cut_off: bool,
) -> None:
    monkeypatch.setattr(puller_module, "CUT_OFF_SECONDS", seconds)
    env.respond(outcome, times=3)
    env.put("a")
    assigned = env.begin()
    await env.polled(1)

    assert set(env.cut_off) == ({assigned} if is_cut_off else set())


@pytest.mark.parametrize("reason", ["full", "paused"])
async def test_the_owner_is_called_for_an_outage_in_which_a_queue_is_not_pulled(
    make_env: Callable[..., PullerEnv], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(puller_module, "CUT_OFF_SECONDS", 0.0)
    monkeypatch.setattr(flow_control, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(flow_control, "LONG_CHECK_SECONDS", 0.001)
    env = make_env(pull_threshold_per_queue=1)
    env.put("a", "b", "c")
    assigned = env.begin()
    await until(lambda: assigned.wake is not None, "the cache to be full")
    assigned.paused = reason == "paused"
    env.wire.connected = False
    await until(lambda: env.cut_off, "the outage to be noticed")
    assert env.recovered == []
    env.wire.connected = True
    await until(lambda: env.recovered, "the recovery to be noticed")
    assigned.paused = False
    await env.polled(3)

    assert set(env.cut_off) == {assigned}
    assert env.recovered == [assigned]
    assert len(env.wire.pulls) == 1 or env.wire.pulls[1].queue_offset == 3


async def test_a_queue_that_is_not_pulled_recovers_with_its_master(
    make_env: Callable[..., PullerEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that returns first does not know what other members have committed."""
    monkeypatch.setattr(flow_control, "CHECK_SECONDS", 0.001)
    env = make_env(pull_threshold_per_queue=1)
    env.wire.addresses[1] = REPLICA
    env.put("a", "b", "c")
    assigned = env.begin()
    await until(lambda: assigned.wake is not None, "the cache to be full")
    env.wire.down = {ADDRESS, REPLICA}
    await until(lambda: assigned.failing_since is not None, "the outage to be noticed")
    since = assigned.failing_since
    env.wire.down = {ADDRESS}
    await until(lambda: assigned.failing_since != since, "the slave to be noticed")
    early = list(env.recovered)
    env.wire.down = set()
    await until(lambda: env.recovered, "the recovery to be noticed")

    assert (early, env.recovered) == ([], [assigned])


@pytest.mark.usefixtures("impatient")
async def test_an_interrupt_between_failures_does_not_hide_the_recovery(env: PullerEnv) -> None:
    """A broker that was down may have lost commits, also if a seek came in between."""
    env.respond(Response(ResponseCode.SYSTEM_ERROR), times=None)
    assigned = env.begin()
    await until(lambda: env.events, "an event")
    env.put("a")
    env.usual()
    assigned.move(0)
    await env.polled(1)

    assert env.recovered == [assigned]


def timed_out(_command: Command, _connection: ServerConnection) -> Outcome:
    raise RequestTimeoutError(REPLICA, RequestCode.LITE_PULL_MESSAGE, 30.0)


async def no_difference(_: object, address: str, last: StoredAt) -> int:
    """The replica has the last message; the master does not run."""
    if address != REPLICA:
        raise NotConnectedError(address, "it does not run")
    return last.offset + 1


def suggest_replica(env: PullerEnv) -> None:
    """Let the master answer the first pull with "a" and suggest the replica."""
    env.wire.addresses[1] = REPLICA
    env.wire.broker_versions[REPLICA] = V5_0_0
    env.put("a")
    record = env.broker.messages("orders", 0)[0].record
    env.respond(Response(0, {**found(1).ext, "suggestWhichBrokerId": "1"}, record))


@pytest.mark.parametrize(
    "response",
    [
        timed_out,
        Close(),
        Response(ResponseCode.SYSTEM_ERROR),
        Response(ResponseCode.SYSTEM_BUSY),
        Response(ResponseCode.SUBSCRIPTION_NOT_EXIST),
        Response(0, {**found(2).ext, "suggestWhichBrokerId": "1"}, b"garbage"),
        moved(0),
    ],
    ids=["timeout", "lost", "error", "busy", "subscription", "garbage", "moved"],
)
@pytest.mark.usefixtures("impatient")
async def test_a_pull_that_fails_at_a_replica_is_repeated_at_the_master(
    env: PullerEnv, response: object
) -> None:
    suggest_replica(env)
    env.respond(response)
    env.begin()
    assert bodies(await env.polled(1)) == ["a"]
    env.put("b")

    assert bodies(await env.polled(1)) == ["b"]
    in_turn = [address for address, _ in groupby(env.wire.addressed)]
    assert in_turn[:3] == [ADDRESS, REPLICA, ADDRESS]
    assert env.wire.addressed.count(REPLICA) == 1
    assert env.corrected == []


async def test_a_replica_that_lags_behind_its_master_is_no_failure(env: PullerEnv) -> None:
    suggest_replica(env)
    env.respond(moved(0))
    assigned = env.begin()
    await env.polled(1)
    env.put("b")
    assert bodies(await env.polled(1)) == ["b"]

    assert env.wire.addressed.count(REPLICA) == 1
    assert (env.events, assigned.replica_ended) == ([], False)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("differs", [False, True], ids=["same log", "another log"])
async def test_a_replica_is_read_while_its_master_is_away_unless_its_log_differs(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch, differs: bool
) -> None:
    async def first_difference(_: object, address: str, last: StoredAt) -> int:
        if address != REPLICA:
            raise NotConnectedError(address, "it does not run")
        return last.offset if differs else last.offset + 1

    monkeypatch.setattr(env.puller._log_check, "first_difference", first_difference)
    suggest_replica(env)
    env.put("b")
    record = env.broker.messages("orders", 0)[1].record
    env.respond(Response(0, {**found(2).ext, "suggestWhichBrokerId": "1"}, record))
    env.wire.down.add(ADDRESS)
    assigned = env.begin()
    await until(lambda: assigned.next_offset == 2 or env.events, "a response of the replica")

    assert env.wire.addressed[:2] == [ADDRESS, REPLICA]
    assert (assigned.next_offset, bool(env.events)) == ((1, True) if differs else (2, False))


async def test_an_empty_queue_is_committed_again_at_a_new_master(env: PullerEnv) -> None:
    assigned = env.begin()
    await env.pulled(1)
    env.instance.addresses[MASTER_ID] = REPLICA
    assigned.interrupt()
    await env.pulled(2)

    assert env.recovered == [assigned]


@pytest.mark.usefixtures("impatient")
async def test_no_position_moves_back_to_the_end_of_a_replica_without_a_master(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica may lag behind; there is nothing to read until there is a master."""
    monkeypatch.setattr(env.puller._log_check, "first_difference", no_difference)
    suggest_replica(env)
    env.begin()
    await env.polled(1)
    del env.wire.addresses[0]
    env.usual()
    env.respond(moved(0), times=None)
    env.put("b")  # ends the long poll
    assert bodies(await env.polled(1)) == ["b"]
    await until(lambda: PullFailed in map(type, env.events), "a failure")
    env.usual()
    env.wire.addresses[0] = ADDRESS
    env.put("c")

    assert bodies(await env.polled(1)) == ["c"]
    assert env.corrected == []


@pytest.mark.usefixtures("impatient")
async def test_a_replica_that_lags_behind_is_read_without_a_master(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log ends before that of the master did, which is no sign of another log."""

    env.put("a", "b", "c")
    records = [each.record for each in env.broker.messages("orders", 0)]
    env.respond(Response(0, {**found(1).ext, "maxOffset": "3"}, records[0]))
    env.respond(Close(), times=None)
    env.begin()
    await until(lambda: PullFailed in map(type, env.events), "the end of the master")
    env.usual()
    env.wire.addresses = {1: REPLICA}
    monkeypatch.setattr(env.puller._log_check, "first_difference", no_difference)
    env.respond(found(2, records[1]), times=None)

    assert bodies(await env.polled(2)) == ["a", "b"]


@pytest.mark.usefixtures("impatient")
async def test_no_position_moves_on_to_the_beginning_of_a_replica_without_a_master(
    env: PullerEnv,
) -> None:
    """A slave that was added later lacks the messages from before."""
    env.put("a", "b")
    env.wire.addresses = {1: REPLICA}
    env.respond(moved(1), times=None)
    env.begin()
    await until(lambda: PullFailed in map(type, env.events), "a failure")
    env.usual()
    env.wire.addresses = {MASTER_ID: ADDRESS}

    assert bodies(await env.polled(2)) == ["a", "b"]


@pytest.mark.usefixtures("impatient")
async def test_a_reset_returned_by_a_replica_is_applied_at_once(env: PullerEnv) -> None:
    suggest_replica(env)
    env.respond(reset_to(0))
    env.begin()
    await until(lambda: env.corrected, "the reset")

    assert env.wire.addressed[:2] == [ADDRESS, REPLICA]


async def test_a_reset_in_a_response_that_meets_a_seek_is_applied(env: PullerEnv) -> None:
    def respond(*_: object) -> Response:
        env.usual()  # brokers send a reset once
        assigned.seek(2)
        return reset_to(1)

    env.respond(respond)
    assigned = env.begin()
    await until(lambda: env.resets, "a reset")

    assert env.resets == [1]


async def test_a_reset_that_cannot_be_read_does_not_stop_the_queue(env: PullerEnv) -> None:
    def respond(*_: object) -> Response:
        env.usual()
        assigned.seek(1)
        return replace(reset_to(1), ext={"nextBeginOffset": "soon"})

    env.put("a", "b")
    env.respond(respond)
    assigned = env.begin()

    assert bodies(await env.polled(1)) == ["b"]
    assert env.resets == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seeks", [False, True], ids=["alone", "and a seek"])
async def test_a_reset_while_an_undecodable_message_is_located_is_applied(
    env: PullerEnv, seeks: bool
) -> None:
    env.put("a", "b", "c")
    spoil = spoiling(env, 0)

    async def respond(command: Command, connection: ServerConnection) -> Outcome:
        if command.ext_fields()["maxMsgNums"] != "1":
            return await spoil(command, connection)
        if seeks:
            assigned.seek(2)
        env.usual()  # brokers send a reset once
        return reset_to(1)

    env.respond(respond, times=2)
    assigned = env.begin()
    await until(lambda: env.resets, "a reset")

    assert env.resets == [1]


@pytest.mark.usefixtures("impatient")
async def test_the_master_is_queried_if_a_replica_cannot_be_reached(env: PullerEnv) -> None:
    env.wire.addresses.clear()
    assigned = env.begin()
    assigned.broker_id = 1
    await until(lambda: env.events, "a failure")
    env.put("a")
    env.wire.addresses[0] = ADDRESS

    assert bodies(await env.polled(1)) == ["a"]
    assert assigned.broker_id == 0
