"""The pull loop of a queue: what it does when there is too much, and when an offset is illegal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.common.events import OffsetCorrected
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.errors import OffsetIllegalError
from rocketmq_aio.protocol.codes import ResponseCode
from tests.fakes.script import Reply
from tests.unit.consumer.parts import offsets
from tests.unit.consumer.puller_env import Rig, bodies, found, moved
from tests.unit.remoting.until import until

BATCH = 8  # messages of a pull
MESSAGES = 200  # of a queue, far above any limit here
BODY = "x" * 100

# --- flow control --------------------------------------------------------------------------------


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
async def test_the_cache_stays_within_its_limits_and_pulling_goes_on_after_polls(
    rigs: Callable[..., Rig], limit: dict[str, int], queues: int, most_messages: int
) -> None:
    rig = rigs(pull_batch_size=BATCH, **limit)
    for number in range(queues):
        rig.put(*[BODY] * MESSAGES, queue_id=number)
        rig.begin(number)
    await wait_all_tasks_blocked()
    filled = rig.cache.count
    assert BATCH < filled <= most_messages

    taken = await rig.polled(queues * MESSAGES)
    for number in range(queues):
        found = [each.queue_offset for each in taken if each.queue.queue_id == number]
        assert found == list(range(MESSAGES))


async def test_pulling_pauses_at_the_maximum_span(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(pull_batch_size=BATCH, max_span=100)
    rig.subscribe("rare")
    for number in range(10):
        rig.put(*["x"] * 49, tag="common")
        rig.put(str(number), tag="rare")
    rig.begin()
    await wait_all_tasks_blocked()
    assert (rig.cache.count, len(rig.wire.asked)) == (BATCH, 1)

    assert bodies(await rig.polled(10)) == [str(number) for number in range(10)]


async def test_paused_queues_with_full_caches_do_not_starve_the_others(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(pull_batch_size=BATCH, pull_threshold_total=10)
    rig.put(*[BODY] * MESSAGES)
    paused = rig.begin(0)
    await wait_all_tasks_blocked()
    paused.paused = True
    rig.put("a", queue_id=1)
    rig.begin(1)

    assert bodies(await rig.polled(1)) == ["a"]
    rig.put("b", queue_id=1)
    assert bodies(await rig.polled(1)) == ["b"]


async def test_a_revoked_queue_makes_room_for_the_others(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(pull_batch_size=BATCH, pull_threshold_total=10)
    rig.put(*[BODY] * MESSAGES)
    rig.put(*[BODY] * MESSAGES, queue_id=1)
    first, second = rig.begin(0), rig.begin(1)
    await wait_all_tasks_blocked()
    before = second.process_queue.count
    first.drop()

    await until(lambda: second.process_queue.count > before, "another pull")


async def test_a_poll_does_not_wake_queues_that_cannot_pull(rig: Rig) -> None:
    assigned = rig.begin()
    await rig.pulled(1)
    assigned.paused = True
    rig.put("a")
    await until(lambda: rig.cache.count == 1)

    assert assigned not in rig.cache.blocked


# --- offsets that do not exist -------------------------------------------------------------------


def corrections(rig: Rig) -> list[tuple[int, int, str, str, int]]:
    return [
        (e.requested, e.corrected, e.policy, e.remark, e.dropped)
        for e in rig.events
        if isinstance(e, OffsetCorrected)
    ]


def log_from(rig: Rig, offset: int) -> None:
    """Let the queue hold ten messages, of which those below *offset* are gone."""
    rig.put(*map(str, range(10)))
    rig.broker.topics["orders"].queues[0].drop_before(offset)
    rig.starts.offsets = {"earliest": offset, "latest": 10}


@pytest.mark.parametrize(
    ("policy", "corrected"), [("broker", 4), ("earliest", 4), ("latest", 10)], ids=str
)
@pytest.mark.usefixtures("impatient")
async def test_deleted_messages_are_skipped_with_an_event(
    rigs: Callable[..., Rig], policy: str, corrected: int
) -> None:
    rig = rigs(offset_illegal=policy)
    log_from(rig, 4)
    rig.begin()
    await until(lambda: rig.events, "an event")
    rig.put("new")

    expected = [str(number) for number in range(corrected, 10)] + ["new"]
    assert bodies(await rig.polled(len(expected))) == expected
    assert corrections(rig) == [(0, corrected, policy, "OFFSET_TOO_SMALL", 0)]


@pytest.mark.parametrize(
    ("policy", "corrected"), [("broker", 10), ("earliest", 4), ("latest", 10)], ids=str
)
@pytest.mark.usefixtures("impatient")
async def test_an_offset_beyond_the_end_is_corrected_with_an_event(
    rigs: Callable[..., Rig], policy: str, corrected: int
) -> None:
    rig = rigs(offset_illegal=policy)
    log_from(rig, 4)
    rig.starts.found = (70, False)
    rig.begin()
    await until(lambda: rig.events, "an event")
    rig.put("new")

    expected = [str(number) for number in range(corrected, 10)] + ["new"]
    assert bodies(await rig.polled(len(expected))) == expected
    assert corrections(rig) == [(70, corrected, policy, "OFFSET_OVERFLOW_BADLY", 0)]
    assert rig.corrected == [corrected]


@pytest.mark.usefixtures("impatient")
async def test_cached_messages_stay_when_later_ones_were_deleted(rig: Rig) -> None:
    rig.put("a", "b")
    assigned = rig.begin()
    await until(lambda: rig.cache.count == 2)
    rig.put(*map(str, range(2, 10)))
    rig.answer(moved(6))
    assigned.move(0)
    await until(lambda: rig.events, "an event")

    assert offsets(await rig.polled(4)) == [6, 7, 8, 9]
    assert rig.corrected == []


@pytest.mark.usefixtures("impatient")
async def test_a_broker_that_lost_its_tail_redelivers_undelivered_messages(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(pull_batch_size=5)
    rig.put(*map(str, range(5)))
    assigned = rig.begin()
    await until(lambda: rig.cache.count == 5)
    del rig.broker.topics["orders"].queues[0].messages[3:]
    rig.put("new 3")
    assigned.interrupt()  # the broker that held the pull is gone
    await until(lambda: rig.events, "an event")

    assert bodies(await rig.polled(4)) == ["0", "1", "2", "new 3"]
    assert corrections(rig) == [(5, 0, "broker", "OFFSET_OVERFLOW_BADLY", 5)]


async def test_the_error_policy_stops_the_queue_until_a_seek(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(offset_illegal="error")
    log_from(rig, 4)
    assigned = rig.begin()
    await until(lambda: rig.ready.failure() is not None)
    failure = rig.ready.failure()
    assert isinstance(failure, OffsetIllegalError)
    assert (failure.code, failure.remark) == (21, "OFFSET_TOO_SMALL")
    pulls = len(rig.wire.asked)
    await wait_all_tasks_blocked()
    assert len(rig.wire.asked) == pulls
    assigned.move(8)

    assert bodies(await rig.polled(2)) == ["8", "9"]
    assert rig.ready.failure() is None


@pytest.mark.parametrize("policy", ["broker", "earliest", "latest", "error"])
@pytest.mark.parametrize("target", [2, 9])
async def test_a_reset_by_an_administrator_overrides_every_policy(
    rigs: Callable[..., Rig], policy: str, target: int
) -> None:
    rig = rigs(offset_illegal=policy, pull_batch_size=5)
    rig.put(*map(str, range(5)))
    assigned = rig.begin()
    await until(lambda: rig.cache.count == 5)
    answer = found(target, code=ResponseCode.PULL_OFFSET_MOVED)

    def reset(*_: object) -> Reply:
        rig.put(*map(str, range(5, 10)))
        return Reply(answer.code, answer.ext, remark="OFFSET_RESET")

    await wait_all_tasks_blocked()
    rig.answer(reset)
    assigned.interrupt()  # a broker answers the next pull so, not the one that it holds
    await until(lambda: rig.corrected, "the reset")

    assert offsets(await rig.polled(10 - target)) == list(range(target, 10))
    assert corrections(rig) == [(5, target, "broker", "OFFSET_RESET", 5)]
    assert rig.corrected == [target]


async def test_pulling_waits_until_the_correction_is_stored(rig: Rig) -> None:
    stored = asyncio.Event()

    async def store(_: PolledQueue) -> None:
        await stored.wait()

    rig.puller._on_corrected = store
    log_from(rig, 4)
    rig.starts.found = (70, False)
    rig.begin()
    await until(lambda: rig.events, "an event")
    await wait_all_tasks_blocked()
    assert len(rig.wire.asked) == 1
    stored.set()

    await rig.pulled(2)


async def test_a_seek_while_the_policy_is_looked_up_wins(rigs: Callable[..., Rig]) -> None:
    rig = rigs(offset_illegal="earliest")
    log_from(rig, 4)
    asked = asyncio.Event()

    async def offset_of(queue: object, start: str) -> int:
        asked.set()
        await asyncio.sleep(3600)
        raise AssertionError("not interrupted")

    rig.starts.offset_of = offset_of  # type: ignore[method-assign]
    assigned = rig.begin()
    await asyncio.wait_for(asked.wait(), 15)
    assigned.move(7)

    assert bodies(await rig.polled(3)) == ["7", "8", "9"]
    assert corrections(rig) == []
