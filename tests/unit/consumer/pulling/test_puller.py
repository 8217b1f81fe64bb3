"""The pull loop of a queue: what it asks, what it makes of the answers, and of a seek."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from anyio import wait_all_tasks_blocked

from rocketmq_aio.consumer.pulling import puller as puller_module
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from tests.fakes.script import Close, Reply
from tests.unit.consumer.parts import offsets
from tests.unit.consumer.puller_env import ADDRESS, Rig, bodies, found
from tests.unit.remoting.until import until

DOWN = NotConnectedError(ADDRESS, "connection refused")


# --- what is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", [True, False])
async def test_a_pull_request_has_group_queue_offset_and_expression(
    rig: Rig, prepared: bool
) -> None:
    rig.wire.takes_prepared = prepared
    rig.subscribe("new || paid")
    rig.put("a")
    rig.starts.found = (1, False)
    rig.begin()
    [asked] = await rig.pulled(1)

    assert (asked.consumer_group, asked.topic, asked.queue_id) == ("billing", "orders", 0)
    assert (asked.queue_offset, asked.max_msg_nums) == (1, 32)
    assert (asked.subscription, asked.expression_type) == ("new || paid", "TAG")
    assert (asked.sys_flag, asked.commit_offset) == (2 | 4 | 16, 0)
    assert asked.suspend_timeout_millis == 15_000
    assert asked.broker_name == "broker-a"


async def test_the_request_timeout_exceeds_the_hold_time(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(long_poll_seconds=2.0)
    rig.begin()
    await rig.pulled(1)

    assert min(rig.wire.timeouts) >= 2.0 + 5.0 + 3.0  # the broker's clock ticks every 5 s


@pytest.mark.parametrize(
    ("version", "code"),
    [(407, RequestCode.PULL_MESSAGE), (513, RequestCode.LITE_PULL_MESSAGE)],
)
async def test_the_request_code_depends_on_the_broker_version(
    rig: Rig, version: int, code: int
) -> None:
    rig.wire.broker_versions[ADDRESS] = version
    rig.begin()
    await rig.pulled(1)

    assert rig.wire.codes == [code]


async def test_the_next_pull_goes_to_the_suggested_replica(rig: Rig) -> None:
    rig.wire.addresses[1] = "127.0.0.1:20911"
    answer = found(1)
    rig.answer(Reply(0, {**answer.ext, "suggestWhichBrokerId": "1"}))
    assigned = rig.begin()
    await rig.pulled(2)

    assert assigned.broker_id == 1


async def test_an_unsubscribed_topic_is_not_pulled(rig: Rig) -> None:
    rig.subscription = None
    rig.begin()
    await wait_all_tasks_blocked()

    assert rig.wire.asked == []


# --- where it begins -----------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [True, False])
async def test_pulling_starts_at_the_committed_offset(rig: Rig, chosen: bool) -> None:
    rig.put("a", "b", "c")
    rig.starts.found = (1, chosen)
    assigned = rig.begin()

    assert bodies(await rig.polled(2)) == ["b", "c"]
    assert rig.started == [(assigned, chosen)]


async def test_pulling_waits_until_the_start_offset_is_known(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "START_PAUSE_SECONDS", 0.001)
    rig.put("a")
    rig.starts.errors = [DOWN, DOWN]
    assigned = rig.begin()

    assert bodies(await rig.polled(1)) == ["a"]
    assert assigned.start_error is DOWN


async def test_pulling_waits_for_the_previous_owner_to_commit(rig: Rig) -> None:
    rig.put("a")
    waiting, begun = rig.begin(wait_seconds=60), rig.begin(1, wait_seconds=0.001)
    await until(begun.started.is_set)
    await wait_all_tasks_blocked()
    assert not waiting.started.is_set()


async def test_pulling_starts_after_that_wait(rig: Rig) -> None:
    rig.put("a")
    rig.begin(wait_seconds=0.001)

    assert bodies(await rig.polled(1)) == ["a"]


async def test_a_seek_overtakes_the_lookup_of_the_start_offset(rig: Rig) -> None:
    rig.put("a", "b")
    rig.starts.errors = [DOWN]
    assigned = rig.begin()
    await until(lambda: assigned.start_error)
    assigned.move(1)

    assert bodies(await rig.polled(1)) == ["b"]
    assert rig.started == []


# --- what is found -------------------------------------------------------------------------------


async def test_messages_of_successive_pulls_are_in_order(rigs: Callable[..., Rig]) -> None:
    rig = rigs(pull_batch_size=3)
    rig.put(*map(str, range(10)))
    rig.begin()

    assert bodies(await rig.polled(10)) == [str(number) for number in range(10)]
    assert [asked.queue_offset for asked in rig.wire.asked] == [0, 3, 6, 9, 10]


async def test_a_held_pull_returns_at_the_first_message(
    rig: Rig,
) -> None:
    rig.begin()
    await rig.pulled(1)
    rig.put("late")

    assert bodies(await rig.polled(1)) == ["late"]


@pytest.mark.parametrize("prepared", [True, False])
async def test_messages_of_other_tags_with_equal_hash_are_filtered_out(
    rig: Rig, prepared: bool
) -> None:
    rig.wire.takes_prepared = prepared
    rig.subscribe("Aa")
    rig.put("wanted", tag="Aa")
    rig.put("same hash", tag="BB")
    rig.put("other", tag="C")
    rig.put("none")
    rig.put("wanted too", tag="Aa")
    rig.begin()

    taken = await rig.polled(2)
    assert bodies(taken) == ["wanted", "wanted too"]
    assert offsets(taken) == [0, 4]


async def test_filtered_messages_advance_the_offset(rig: Rig) -> None:
    rig.subscribe("Aa")
    for _ in range(40):
        rig.put("same hash", tag="BB")
        rig.put("other", tag="C")
    assigned = rig.begin()
    await until(lambda: assigned.committable == 80, "the position to move")

    assert (assigned.delivered, rig.cache.count) == (80, 0)


async def test_a_batch_that_begins_before_the_offset_is_cut(rig: Rig) -> None:
    rig.put("a", "b", "c")
    records = b"".join(stored.record for stored in rig.broker.messages("orders", 0))
    rig.answer(found(3, records))
    rig.starts.found = (1, False)
    rig.begin()

    assert offsets(await rig.polled(2)) == [1, 2]


async def test_the_offset_delta_of_static_topics_is_added(rig: Rig) -> None:
    rig.put("a", "b")
    records = b"".join(stored.record for stored in rig.broker.messages("orders", 0))
    answer = found(1002, records)
    rig.answer(Reply(0, {**answer.ext, "offsetDelta": "1000"}, records))
    rig.answer(found(1002, code=ResponseCode.PULL_NOT_FOUND), times=None)
    rig.starts.found = (1000, False)
    rig.begin()

    assert offsets(await rig.polled(2)) == [1000, 1001]


@pytest.mark.usefixtures("impatient")
async def test_messages_pulled_twice_are_delivered_once(rig: Rig) -> None:
    rig.put("a", "b")
    records = b"".join(stored.record for stored in rig.broker.messages("orders", 0))
    rig.answer(found(0, records), times=3)
    assigned = rig.begin()

    assert bodies(await rig.polled(2)) == ["a", "b"]
    await rig.pulled(4)
    assert rig.cache.count == 0
    await until(lambda: assigned.next_offset == 2)


# --- seeking -------------------------------------------------------------------------------------


async def test_a_seek_cancels_the_running_pull(rig: Rig) -> None:
    rig.put("a", "b", "c")
    rig.starts.found = (3, False)
    assigned = rig.begin()
    await rig.pulled(1)
    assigned.move(1)

    assert bodies(await rig.polled(2)) == ["b", "c"]


async def test_an_answer_from_before_a_seek_is_ignored(rig: Rig) -> None:
    rig.put("a", "b", "c")
    records = b"".join(stored.record for stored in rig.broker.messages("orders", 0))
    answered = asyncio.Event()

    async def late(*_: object) -> Reply:
        await answered.wait()
        return found(3, records)

    rig.answer(late)
    assigned = rig.begin()
    await rig.pulled(1)
    answered.set()  # the answer is there, and the pull loop has not run yet
    assigned.move(2)

    assert bodies(await rig.polled(1)) == ["c"]
    assert rig.cache.count == 0


@pytest.mark.usefixtures("impatient")
async def test_a_seek_is_not_lost_when_the_next_pull_fails(rig: Rig) -> None:
    rig.put("a", "b", "c")
    rig.starts.found = (3, False)
    assigned = rig.begin()
    await rig.pulled(1)
    rig.answer(Close(), times=2)
    assigned.move(1)

    assert bodies(await rig.polled(2)) == ["b", "c"]


async def test_a_seek_at_any_step_of_pulling_wins(rigs: Callable[..., Rig]) -> None:
    for steps in range(30):
        rig = rigs(pull_batch_size=2)
        rig.put(*map(str, range(10)))
        assigned = rig.begin()
        for _ in range(steps):
            await asyncio.sleep(0)
        assigned.move(8)
        assigned.move(7)

        assert bodies(await rig.polled(3)) == ["7", "8", "9"]
        await rig.close()


async def test_a_revoked_queue_is_not_pulled(rig: Rig) -> None:
    assigned = rig.begin()
    await rig.pulled(1)
    assigned.drop()
    await until(lambda: rig._tasks[0].done())
    rig.put("a")
    await wait_all_tasks_blocked()

    assert len(rig.wire.asked) == 1
    assert rig.cache.count == 0


async def test_a_paused_queue_is_not_pulled_until_resume(rig: Rig) -> None:
    assigned = rig.begin()
    await rig.pulled(1)
    assigned.paused = True
    rig.put("a")
    await until(lambda: rig.cache.count == 1)
    rig.put("b")
    await wait_all_tasks_blocked()
    assert len(rig.wire.asked) == 1
    assigned.paused = False
    assigned.wake_puller()

    assert bodies(await rig.polled(2)) == ["a", "b"]
