"""Puller: requests, responses and seeks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from anyio import wait_all_tasks_blocked
from msgspec.structs import replace

from rocketmq_aio.consumer.pull_loop import puller as puller_module
from rocketmq_aio.consumer.pull_loop.queue_state import Start
from rocketmq_aio.embedded.responses import Close, Response
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.decoding import Decoded
from tests.unit.consumer.parts import offsets
from tests.unit.consumer.puller_env import ADDRESS, PullerEnv, bodies, found
from tests.unit.remoting.until import settle, until

DOWN = NotConnectedError(ADDRESS, "connection refused")


@pytest.mark.parametrize("prepared", [True, False])
async def test_a_pull_request_has_group_queue_offset_and_expression(
    env: PullerEnv, prepared: bool
) -> None:
    env.wire.takes_prepared = prepared
    env.subscribe("new || paid")
    env.put("a")
    env.starts.found = Start(1)
    env.begin()
    [_before, requests] = await env.pulled(2)

    assert (requests.consumer_group, requests.topic, requests.queue_id) == ("billing", "orders", 0)
    assert (requests.queue_offset, requests.max_msg_nums) == (1, 32)
    assert (requests.subscription, requests.expression_type) == ("new || paid", "TAG")
    assert (requests.sys_flag, requests.commit_offset) == (2 | 4 | 16, 0)
    assert requests.suspend_timeout_millis == 15_000
    assert requests.broker_name == "broker-a"


async def test_the_request_timeout_exceeds_the_hold_time(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(long_poll_seconds=2.0)
    env.begin()
    await env.pulled(1)

    assert min(env.wire.timeouts) >= 2.0 + 5.0 + 3.0  # the broker's clock ticks every 5 s


@pytest.mark.parametrize(
    ("version", "code"), [(407, RequestCode.PULL_MESSAGE), (513, RequestCode.LITE_PULL_MESSAGE)]
)
async def test_the_request_code_depends_on_the_broker_version(
    env: PullerEnv, version: int, code: int
) -> None:
    env.wire.broker_versions[ADDRESS] = version
    env.begin()
    await env.pulled(1)

    assert env.wire.codes == [code]


@pytest.mark.parametrize("empty", [False, True])
async def test_the_next_pull_goes_to_the_suggested_replica(env: PullerEnv, empty: bool) -> None:
    env.wire.addresses[1] = "127.0.0.1:20911"
    env.put("a")
    record = env.broker.messages("orders", 0)[0].record
    response = found(0, code=ResponseCode.PULL_NOT_FOUND) if empty else found(1, record)
    env.respond(replace(response, ext={**response.ext, "suggestWhichBrokerId": "1"}))
    assigned = env.begin()
    await env.pulled(2)

    assert assigned.broker_id == 1


async def test_an_unsubscribed_topic_is_not_pulled(env: PullerEnv, pauses: list[float]) -> None:
    env.subscriptions.clear()
    env.begin()
    await until(lambda: len(pauses) > 2, "three looks")

    assert env.wire.pulls == []


@pytest.mark.parametrize("chosen", [True, False])
async def test_pulling_starts_at_the_committed_offset(env: PullerEnv, chosen: bool) -> None:
    env.put("a", "b", "c")
    env.starts.found = Start(1, is_new=chosen)
    assigned = env.begin()

    assert bodies(await env.polled(2)) == ["b", "c"]
    assert env.started == [(assigned, chosen)]


async def test_pulling_waits_until_the_start_offset_is_known(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "START_PAUSE_SECONDS", 0.001)
    env.put("a")
    env.starts.errors = [DOWN, DOWN]
    assigned = env.begin()

    assert bodies(await env.polled(1)) == ["a"]
    assert assigned.start_error is DOWN


async def test_pulling_waits_for_the_previous_owner_to_commit(env: PullerEnv) -> None:
    env.put("a")
    waiting, started = env.begin(wait_seconds=60), env.begin(1, wait_seconds=0.001)
    await until(started.started.is_set)
    await wait_all_tasks_blocked()
    assert not waiting.started.is_set()


async def test_pulling_starts_after_that_wait(env: PullerEnv) -> None:
    env.put("a")
    env.begin(wait_seconds=0.001)

    assert bodies(await env.polled(1)) == ["a"]


async def test_a_seek_overtakes_the_lookup_of_the_start_offset(env: PullerEnv) -> None:
    env.put("a", "b")
    env.starts.errors = [DOWN]
    assigned = env.begin()
    await until(lambda: assigned.start_error)
    assigned.move(1)

    assert bodies(await env.polled(1)) == ["b"]
    assert env.started == []


async def test_messages_of_successive_pulls_are_in_order(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(pull_batch_size=3)
    env.put(*map(str, range(10)))
    env.begin()

    assert bodies(await env.polled(10)) == [str(number) for number in range(10)]
    assert [requests.queue_offset for requests in env.wire.pulls] == [0, 3, 6, 9, 10]


async def test_a_held_pull_returns_at_the_first_message(env: PullerEnv) -> None:
    env.begin()
    await env.pulled(1)
    env.put("late")

    assert bodies(await env.polled(1)) == ["late"]


@pytest.mark.parametrize("prepared", [True, False])
async def test_messages_of_other_tags_with_equal_hash_are_filtered_out(
    env: PullerEnv, prepared: bool
) -> None:
    env.wire.takes_prepared = prepared
    env.subscribe("Aa")
    env.put("wanted", tag="Aa")
    env.put("same hash", tag="BB")
    env.put("other", tag="C")
    env.put("none")
    env.put("wanted too", tag="Aa")
    env.begin()

    taken = await env.polled(2)
    assert bodies(taken) == ["wanted", "wanted too"]
    assert offsets(taken) == [0, 4]


async def test_filtered_messages_advance_the_offset(env: PullerEnv) -> None:
    env.subscribe("Aa")
    for _ in range(40):
        env.put("same hash", tag="BB")
        env.put("other", tag="C")
    assigned = env.begin()
    await until(lambda: assigned.committable == 80, "the position to move")

    assert (assigned.delivered, env.cache.count) == (80, 0)


async def test_a_batch_that_begins_before_the_offset_is_cut(env: PullerEnv) -> None:
    env.put("a", "b", "c")
    records = b"".join(stored.record for stored in env.broker.messages("orders", 0))
    env.respond(found(3, records))
    env.starts.found = Start(1)
    env.begin()

    assert offsets(await env.polled(2)) == [1, 2]


async def test_the_offset_delta_of_static_topics_is_added(env: PullerEnv) -> None:
    env.put("a", "b")
    records = b"".join(stored.record for stored in env.broker.messages("orders", 0))
    response = found(1002, records)
    env.respond(Response(0, {**response.ext, "offsetDelta": "1000"}, records))
    env.respond(found(1002, code=ResponseCode.PULL_NOT_FOUND), times=None)
    env.starts.found = Start(1000)
    env.begin()

    assert offsets(await env.polled(2)) == [1000, 1001]


@pytest.mark.usefixtures("impatient")
async def test_messages_pulled_twice_are_delivered_once(env: PullerEnv) -> None:
    env.put("a", "b")
    records = b"".join(stored.record for stored in env.broker.messages("orders", 0))
    env.respond(found(0, records), times=3)
    assigned = env.begin()

    assert bodies(await env.polled(2)) == ["a", "b"]
    await env.pulled(4)
    assert env.cache.count == 0
    await until(lambda: assigned.next_offset == 2)


async def test_a_seek_cancels_the_running_pull(env: PullerEnv) -> None:
    env.put("a", "b", "c")
    env.starts.found = Start(3)
    assigned = env.begin()
    await env.pulled(1)
    assigned.move(1)

    assert bodies(await env.polled(2)) == ["b", "c"]


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SUCCESS,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_OFFSET_MOVED,
    ],
)
async def test_an_answer_from_before_a_seek_is_ignored(env: PullerEnv, code: int) -> None:
    env.subscribe("wanted")
    env.put("a", "b", "c", tag="wanted")
    records = b"".join(stored.record for stored in env.broker.messages("orders", 0))
    answered = asyncio.Event()

    async def late(*_: object) -> Response:
        await answered.wait()
        return found(3, records if code == ResponseCode.SUCCESS else b"", code)

    env.respond(late)
    assigned = env.begin()
    await env.pulled(1)
    answered.set()  # the response is there, and the pull loop has not run yet
    assigned.move(2)

    assert bodies(await env.polled(1)) == ["c"]
    assert env.cache.count == 0
    assert env.resets == []


async def test_a_seek_while_a_response_is_decoded_wins(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, decoded = env.puller._decoder.decode, 0

    async def seek_meanwhile(body: bytes, queue: MessageQueue) -> Decoded:
        nonlocal decoded
        decoded += 1
        if decoded == 1:
            assigned.seek(2)
        return await decode(body, queue)

    monkeypatch.setattr(env.puller._decoder, "decode", seek_meanwhile)
    env.put("a", "b", "c")
    assigned = env.begin()

    assert bodies(await env.polled(1)) == ["c"]
    assert env.cache.count == 0


@pytest.mark.usefixtures("impatient")
async def test_a_seek_is_not_lost_when_the_next_pull_fails(env: PullerEnv) -> None:
    env.put("a", "b", "c")
    env.starts.found = Start(3)
    assigned = env.begin()
    await env.pulled(1)
    env.respond(Close(), times=2)
    assigned.move(1)

    assert bodies(await env.polled(2)) == ["b", "c"]


async def test_a_seek_at_any_step_of_pulling_wins(make_env: Callable[..., PullerEnv]) -> None:
    for steps in range(30):
        env = make_env(pull_batch_size=2)
        env.put(*map(str, range(10)))
        assigned = env.begin()
        await settle(turns=steps)
        assigned.move(8)
        assigned.move(7)

        assert bodies(await env.polled(3)) == ["7", "8", "9"]
        await env.close()


async def test_a_revoked_queue_is_not_pulled(env: PullerEnv) -> None:
    assigned = env.begin()
    await env.pulled(1)
    assigned.drop()
    await until(lambda: env._tasks[0].done())
    env.put("a")
    await wait_all_tasks_blocked()

    assert len(env.wire.pulls) == 1
    assert env.cache.count == 0


async def test_a_paused_queue_is_not_pulled_until_resume(env: PullerEnv) -> None:
    assigned = env.begin()
    await env.pulled(1)
    assigned.paused = True
    env.put("a")
    await until(lambda: env.cache.count == 1)
    env.put("b")
    await wait_all_tasks_blocked()
    assert len(env.wire.pulls) == 1
    assigned.paused = False
    assigned.wake_puller()

    assert bodies(await env.polled(2)) == ["a", "b"]
