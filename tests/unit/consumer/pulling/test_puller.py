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
async def test_a_pull_says_who_wants_what_and_from_where(rig: Rig, prepared: bool) -> None:
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


async def test_an_answer_has_more_time_than_the_broker_may_hold_it(
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
async def test_brokers_are_asked_in_a_way_that_they_know(rig: Rig, version: int, code: int) -> None:
    rig.wire.broker_versions[ADDRESS] = version
    rig.begin()
    await rig.pulled(1)

    assert rig.wire.codes == [code]


async def test_the_replica_that_the_broker_suggests_is_asked_next(rig: Rig) -> None:
    rig.wire.addresses[1] = "127.0.0.1:20911"
    answer = found(1)
    rig.answer(Reply(0, {**answer.ext, "suggestWhichBrokerId": "1"}))
    assigned = rig.begin()
    await rig.pulled(2)

    assert assigned.broker_id == 1


async def test_nobody_is_asked_for_a_topic_that_is_not_wanted_any_more(rig: Rig) -> None:
    rig.subscription = None
    rig.begin()
    await wait_all_tasks_blocked()

    assert rig.wire.asked == []


# --- where it begins -----------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [True, False])
async def test_it_begins_where_the_group_stands(rig: Rig, chosen: bool) -> None:
    rig.put("a", "b", "c")
    rig.starts.found = (1, chosen)
    assigned = rig.begin()

    assert bodies(await rig.polled(2)) == ["b", "c"]
    assert rig.started == [(assigned, chosen)]


async def test_it_waits_until_it_is_known_where_to_begin(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller_module, "START_PAUSE_SECONDS", 0.001)
    rig.put("a")
    rig.starts.errors = [DOWN, DOWN]
    assigned = rig.begin()

    assert bodies(await rig.polled(1)) == ["a"]
    assert assigned.start_error is DOWN


async def test_it_leaves_time_for_the_member_who_had_the_queue(rig: Rig) -> None:
    rig.put("a")
    waiting, begun = rig.begin(wait_seconds=60), rig.begin(1, wait_seconds=0.001)
    await until(begun.started.is_set)
    await wait_all_tasks_blocked()
    assert not waiting.started.is_set()


async def test_that_time_over_it_begins(rig: Rig) -> None:
    rig.put("a")
    rig.begin(wait_seconds=0.001)

    assert bodies(await rig.polled(1)) == ["a"]


async def test_a_seek_overtakes_the_question_where_to_begin(rig: Rig) -> None:
    rig.put("a", "b")
    rig.starts.errors = [DOWN]
    assigned = rig.begin()
    await until(lambda: assigned.start_error)
    assigned.move(1)

    assert bodies(await rig.polled(1)) == ["b"]
    assert rig.started == []


# --- what is found -------------------------------------------------------------------------------


async def test_messages_come_in_order_pull_after_pull(rigs: Callable[..., Rig]) -> None:
    rig = rigs(pull_batch_size=3)
    rig.put(*map(str, range(10)))
    rig.begin()

    assert bodies(await rig.polled(10)) == [str(number) for number in range(10)]
    assert [asked.queue_offset for asked in rig.wire.asked] == [0, 3, 6, 9, 10]


async def test_a_message_that_arrives_while_the_broker_holds_the_pull_comes_at_once(
    rig: Rig,
) -> None:
    rig.begin()
    await rig.pulled(1)
    rig.put("late")

    assert bodies(await rig.polled(1)) == ["late"]


@pytest.mark.parametrize("prepared", [True, False])
async def test_the_broker_compares_hashes_and_the_consumer_tags(rig: Rig, prepared: bool) -> None:
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


async def test_progress_over_messages_that_are_not_wanted_counts(rig: Rig) -> None:
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


async def test_offsets_of_a_moved_queue_are_those_of_the_topic(rig: Rig) -> None:
    rig.put("a", "b")
    records = b"".join(stored.record for stored in rig.broker.messages("orders", 0))
    answer = found(1002, records)
    rig.answer(Reply(0, {**answer.ext, "offsetDelta": "1000"}, records))
    rig.answer(found(1002, code=ResponseCode.PULL_NOT_FOUND), times=None)
    rig.starts.found = (1000, False)
    rig.begin()

    assert offsets(await rig.polled(2)) == [1000, 1001]


@pytest.mark.usefixtures("impatient")
async def test_what_was_pulled_twice_comes_once(rig: Rig) -> None:
    rig.put("a", "b")
    records = b"".join(stored.record for stored in rig.broker.messages("orders", 0))
    rig.answer(found(0, records), times=3)
    assigned = rig.begin()

    assert bodies(await rig.polled(2)) == ["a", "b"]
    await rig.pulled(4)
    assert rig.cache.count == 0
    await until(lambda: assigned.next_offset == 2)


# --- seeking -------------------------------------------------------------------------------------


async def test_a_seek_abandons_the_pull_that_is_under_way(rig: Rig) -> None:
    rig.put("a", "b", "c")
    rig.starts.found = (3, False)
    assigned = rig.begin()
    await rig.pulled(1)
    assigned.move(1)

    assert bodies(await rig.polled(2)) == ["b", "c"]


async def test_an_answer_that_came_with_the_seek_is_not_used(rig: Rig) -> None:
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


async def test_a_queue_that_is_given_up_is_pulled_no_more(rig: Rig) -> None:
    assigned = rig.begin()
    await rig.pulled(1)
    assigned.drop()
    await until(lambda: rig._tasks[0].done())
    rig.put("a")
    await wait_all_tasks_blocked()

    assert len(rig.wire.asked) == 1
    assert rig.cache.count == 0


async def test_a_paused_queue_is_not_pulled_until_it_goes_on(rig: Rig) -> None:
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
