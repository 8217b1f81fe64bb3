"""Puller: flow control and illegal offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.common.events import OffsetCorrected
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.pull_loop.queue_state import Start
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.errors import OffsetIllegalError, PermissionDeniedError
from rocketmq_aio.protocol.codes import ResponseCode
from tests.unit.consumer.parts import offsets
from tests.unit.consumer.puller_env import ADDRESS, PullerEnv, bodies, found, moved
from tests.unit.remoting.until import until

BATCH = 8  # messages of a pull
MESSAGES = 200  # of a queue, far above any limit here
BODY = "x" * 100


@pytest.mark.parametrize(
    ("limit", "queues", "most_messages"),
    [
        ({"pull_threshold_per_queue": 20}, 1, 20 + BATCH),
        ({"pull_threshold_bytes_per_queue": 2000}, 1, 20 + BATCH),
        ({"max_span": 20}, 1, 21 + BATCH),
        ({"pull_threshold_total": 40}, 4, 40 + 4 * BATCH),
        ({"pull_threshold_bytes_total": 4000}, 4, 40 + 4 * BATCH),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_the_cache_stays_within_its_limits_and_polls_resume_pulling(
    make_env: Callable[..., PullerEnv], limit: dict[str, int], queues: int, most_messages: int
) -> None:
    env = make_env(pull_batch_size=BATCH, **limit)
    for number in range(queues):
        env.put(*[BODY] * MESSAGES, queue_id=number)
        env.begin(number)
    await wait_all_tasks_blocked()
    filled = env.cache.count
    assert BATCH < filled <= most_messages

    taken = await env.polled(queues * MESSAGES)
    for number in range(queues):
        found = [each.queue_offset for each in taken if each.queue.queue_id == number]
        assert found == list(range(MESSAGES))


async def test_pulling_pauses_at_the_maximum_span(make_env: Callable[..., PullerEnv]) -> None:
    env = make_env(pull_batch_size=BATCH, max_span=100)
    env.subscribe("rare")
    for number in range(10):
        env.put(*["x"] * 49, tag="common")
        env.put(str(number), tag="rare")
    env.begin()
    await wait_all_tasks_blocked()
    assert (env.cache.count, len(env.wire.pulls)) == (BATCH, 1)

    assert bodies(await env.polled(10)) == [str(number) for number in range(10)]


async def test_paused_queues_with_full_caches_do_not_starve_the_others(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(pull_batch_size=BATCH, pull_threshold_total=10)
    env.put(*[BODY] * MESSAGES)
    paused = env.begin(0)
    await wait_all_tasks_blocked()
    paused.paused = True
    env.put("a", queue_id=1)
    env.begin(1)

    assert bodies(await env.polled(1)) == ["a"]
    env.put("b", queue_id=1)
    assert bodies(await env.polled(1)) == ["b"]


async def test_a_revoked_queue_makes_room_for_the_others(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(pull_batch_size=BATCH, pull_threshold_total=10)
    env.put(*[BODY] * MESSAGES)
    env.put(*[BODY] * MESSAGES, queue_id=1)
    first, second = env.begin(0), env.begin(1)
    await wait_all_tasks_blocked()
    before = second.process_queue.count
    first.drop()

    await until(lambda: second.process_queue.count > before, "another pull")


async def test_a_poll_does_not_wake_queues_that_cannot_pull(env: PullerEnv) -> None:
    assigned = env.begin()
    await env.pulled(1)
    assigned.paused = True
    env.put("a")
    await until(lambda: env.cache.count == 1)

    assert assigned not in env.cache.blocked


def corrections(env: PullerEnv) -> list[tuple[int, int, str, str, int]]:
    return [
        (e.requested, e.corrected, e.policy, e.remark, e.dropped)
        for e in env.events
        if isinstance(e, OffsetCorrected)
    ]


def log_from(env: PullerEnv, offset: int) -> None:
    """Let the queue hold ten messages, of which those below *offset* are gone."""
    env.put(*map(str, range(10)))
    env.broker.topics["orders"].queues[0].drop_before(offset)
    env.starts.offsets = {"earliest": offset, "latest": 10}


@pytest.mark.parametrize(
    ("policy", "corrected"), [("broker", 4), ("earliest", 4), ("latest", 10)], ids=str
)
@pytest.mark.usefixtures("impatient")
async def test_deleted_messages_are_skipped_with_an_event(
    make_env: Callable[..., PullerEnv], policy: str, corrected: int
) -> None:
    env = make_env(offset_illegal=policy)
    log_from(env, 4)
    env.begin()
    await until(lambda: env.events, "an event")
    env.put("new")

    expected = [str(number) for number in range(corrected, 10)] + ["new"]
    assert bodies(await env.polled(len(expected))) == expected
    assert corrections(env) == [(0, corrected, policy, "OFFSET_TOO_SMALL", 0)]


@pytest.mark.parametrize("start", [0, 70], ids=["before", "behind"])
@pytest.mark.usefixtures("impatient")
async def test_the_earliest_message_is_found_without_the_permission_to_query_its_offset(
    make_env: Callable[..., PullerEnv], start: int
) -> None:
    """`StartPositions.offset_of` returns 0 then."""
    env = make_env(offset_illegal="earliest")
    log_from(env, 4)
    env.starts.offsets["earliest"] = 0
    env.starts.found = Start(start)
    env.begin()

    assert offsets(await env.polled(6)) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("start", [0, 70], ids=["before", "behind"])
@pytest.mark.usefixtures("impatient")
async def test_the_end_is_found_without_the_permission_to_query_it(
    make_env: Callable[..., PullerEnv], monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    async def denied(queue: object, start: str) -> int:
        raise PermissionDeniedError(16, "no Get", ADDRESS)

    env = make_env(offset_illegal="latest")
    monkeypatch.setattr(env.starts, "offset_of", denied)
    log_from(env, 4)
    env.starts.found = Start(start)
    env.begin()
    await until(lambda: env.events, "an event")
    env.put("new")

    assert bodies(await env.polled(1)) == ["new"]
    assert [each[1:3] for each in corrections(env)] == [(10, "latest")]


@pytest.mark.parametrize(
    ("policy", "corrected"), [("broker", 10), ("earliest", 4), ("latest", 10)], ids=str
)
@pytest.mark.usefixtures("impatient")
async def test_an_offset_beyond_the_end_is_corrected_with_an_event(
    make_env: Callable[..., PullerEnv], policy: str, corrected: int
) -> None:
    env = make_env(offset_illegal=policy)
    log_from(env, 4)
    env.starts.found = Start(70)
    env.begin()
    await until(lambda: env.events, "an event")
    env.put("new")

    expected = [str(number) for number in range(corrected, 10)] + ["new"]
    assert bodies(await env.polled(len(expected))) == expected
    assert corrections(env) == [(70, corrected, policy, "OFFSET_OVERFLOW_BADLY", 0)]
    assert env.corrected == [corrected]


@pytest.mark.usefixtures("impatient")
async def test_cached_messages_stay_when_later_ones_were_deleted(env: PullerEnv) -> None:
    env.put("a", "b")
    assigned = env.begin()
    await until(lambda: env.cache.count == 2)
    env.put(*map(str, range(2, 10)))
    env.respond(moved(6))
    assigned.move(0)
    await until(lambda: env.events, "an event")

    assert offsets(await env.polled(4)) == [6, 7, 8, 9]
    assert env.corrected == []


@pytest.mark.usefixtures("impatient")
async def test_a_broker_that_lost_its_tail_redelivers_undelivered_messages(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(pull_batch_size=5)
    env.put(*map(str, range(5)))
    assigned = env.begin()
    await until(lambda: env.cache.count == 5)
    del env.broker.topics["orders"].queues[0].messages[3:]
    env.put("new 3")
    assigned.interrupt()  # the broker that held the pull is gone
    await until(lambda: env.events, "an event")

    assert bodies(await env.polled(4)) == ["0", "1", "2", "new 3"]
    assert corrections(env) == [(5, 0, "broker", "OFFSET_OVERFLOW_BADLY", 5)]


async def test_the_error_policy_stops_the_queue_until_a_seek(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(offset_illegal="error")
    log_from(env, 4)
    assigned = env.begin()
    await until(lambda: env.ready.failure() is not None)
    failure = env.ready.failure()
    assert isinstance(failure, OffsetIllegalError)
    assert (failure.code, failure.remark) == (21, "OFFSET_TOO_SMALL")
    pulls = len(env.wire.pulls)
    await wait_all_tasks_blocked()
    assert len(env.wire.pulls) == pulls
    assigned.move(8)

    assert bodies(await env.polled(2)) == ["8", "9"]
    assert env.ready.failure() is None


@pytest.mark.parametrize("policy", ["broker", "earliest", "latest", "error"])
@pytest.mark.parametrize("target", [2, 9])
async def test_a_reset_by_an_administrator_overrides_every_policy(
    make_env: Callable[..., PullerEnv], policy: str, target: int
) -> None:
    env = make_env(offset_illegal=policy, pull_batch_size=5)
    env.put(*map(str, range(5)))
    assigned = env.begin()
    await until(lambda: env.cache.count == 5)
    response = found(target, code=ResponseCode.PULL_OFFSET_MOVED)

    def reset(*_: object) -> Response:
        env.put(*map(str, range(5, 10)))
        return Response(response.code, response.ext, remark="OFFSET_RESET")

    await wait_all_tasks_blocked()
    env.respond(reset)
    assigned.interrupt()  # a broker answers the next pull so, not the one that it holds
    await until(lambda: env.corrected, "the reset")

    assert offsets(await env.polled(10 - target)) == list(range(target, 10))
    assert corrections(env) == [(5, target, "broker", "OFFSET_RESET", 5)]
    assert env.corrected == [target]


async def test_pulling_waits_until_the_correction_is_stored(
    env: PullerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = asyncio.Event()

    async def store(_: PolledQueue) -> None:
        await stored.wait()

    monkeypatch.setattr(env, "on_corrected", store)
    log_from(env, 4)
    env.starts.found = Start(70)
    env.begin()
    await until(lambda: env.events, "an event")
    await wait_all_tasks_blocked()
    assert len(env.wire.pulls) == 2  # of the message before the position, and from there
    stored.set()

    await env.pulled(3)


async def test_a_seek_while_the_policy_is_looked_up_wins(
    make_env: Callable[..., PullerEnv],
) -> None:
    env = make_env(offset_illegal="earliest")
    log_from(env, 4)
    env.starts.found = Start(70)
    requests = asyncio.Event()

    async def offset_of(queue: object, start: str) -> int:
        requests.set()
        await asyncio.sleep(3600)
        raise AssertionError("not interrupted")

    env.starts.offset_of = offset_of  # type: ignore[method-assign]
    assigned = env.begin()
    await asyncio.wait_for(requests.wait(), 15)
    assigned.move(7)

    assert bodies(await env.polled(3)) == ["7", "8", "9"]
    assert corrections(env) == []
