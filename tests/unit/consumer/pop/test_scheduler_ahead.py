"""PopAhead: how many pops are in flight, and what becomes of their messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.consumer.pop import scheduler as scheduler_module
from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.intake import PopIntake
from rocketmq_aio.consumer.pop.loop import PopLoop
from rocketmq_aio.consumer.pop.pop_client import PopRequest
from rocketmq_aio.consumer.pop.scheduler import MOST_AHEAD, PopAhead
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import TOPIC, numbers, put
from tests.unit.consumer.pop_env import popped, popping

POP: Final = RequestCode.POP_MESSAGE
CHANGE: Final = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
REQUEST: Final = PopRequest(32, 60.0, 0.0)
BROKER: Final = MessageQueue(TOPIC, "broker-a", -1)


class AheadEnv:
    """The loop of a broker, whose pops ahead only are counted."""

    def __init__(self, workers: int = 1) -> None:
        self.pops = 0
        self.may_spawn = True
        self.buffer = PopBuffer(orderly=False)
        self.loop = PopLoop(
            cast(PopIntake, SimpleNamespace(subscription_of=lambda _: "*")),
            BROKER,
            next_request=lambda _: None,
            deliver=self.buffer.add,
        )
        instance = SimpleNamespace(tasks=SimpleNamespace(spawn=self._spawn))
        self.ahead = PopAhead(
            cast(MQClientInstance, instance), {BROKER: self.loop}, self.buffer, range(workers)
        )

    def process(self, seconds: float) -> None:
        """Process messages until the average has this value."""
        for _ in range(200):
            self.ahead.note_processed(seconds)

    def _spawn(self, *_: object, **__: object) -> bool:
        self.pops += self.may_spawn
        return self.may_spawn


@pytest.mark.parametrize(
    ("of_message", "workers", "waiting", "of_pop", "pops"),
    [
        (60.0, 1, 0, 0.3, 0),
        (0.001, 1, 0, 0.0005, 0),
        (0.001, 1, 0, 0.03, 1),
        (0.001, 1, 0, 0.07, 3),
        (0.001, 1, 0, 10.0, MOST_AHEAD),
        (0.001, 1, 32, 0.03, 0),
        (0.001, 2, 32, 0.03, 1),
        (0.0, 1, 0, 0.01, MOST_AHEAD),
    ],
)
def test_as_many_messages_are_popped_ahead_as_a_round_trip_processes(
    of_message: float, workers: int, waiting: int, of_pop: float, pops: int
) -> None:
    env = AheadEnv(workers)
    env.process(of_message)
    env.buffer.add(popped(offset) for offset in range(waiting))
    env.ahead.on_full(env.loop, REQUEST, of_pop)

    assert env.pops == env.loop.ahead == pops


def test_messages_of_pops_in_flight_count() -> None:
    env = AheadEnv()
    env.process(0.001)
    env.loop.ahead = 1
    env.ahead.on_full(env.loop, REQUEST, 0.03)

    assert env.pops == 0


def test_nothing_is_popped_ahead_before_the_first_message_is_processed() -> None:
    env = AheadEnv()
    env.ahead.on_full(env.loop, REQUEST, 0.5)

    assert env.pops == 0


def test_a_closing_instance_pops_nothing_ahead() -> None:
    env = AheadEnv()
    env.process(0.001)
    env.may_spawn = False
    env.ahead.on_full(env.loop, REQUEST, 10.0)

    assert env.loop.ahead == 0


async def test_a_pop_ahead_that_fails_leaves_the_error_to_the_loop() -> None:
    async def fail(*_: object) -> None:
        raise NotConnectedError("broker-a", "it is down")

    env = AheadEnv()
    intake = cast(Any, env.loop._intake)
    intake.client = SimpleNamespace(pop=fail)
    env.loop.ahead = 1
    await env.loop.pop_ahead(REQUEST)

    assert env.loop.ahead == 0
    assert env.loop.failure is None


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages count as processed at once, so pops take long in comparison."""
    monkeypatch.setattr(scheduler_module, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(PopAhead, "note_processed", lambda *_: None)


@pytest.mark.usefixtures("quick")
async def test_several_pops_are_in_flight_while_a_broker_has_more(cluster: FakeCluster) -> None:
    put(cluster, *numbers(300))
    cluster.faults.delay("pop", 0.01, times=2)
    seen: list[str] = []
    async with popping(cluster) as consumer:
        async for message in consumer:
            if len(seen) == 32:  # the first of the second pop
                await cluster.broker.wait_for(POP, 2 + MOST_AHEAD)
            seen.append(message.body.decode())
            if len(seen) == 300:
                await consumer.ack(message)
                break

    assert sorted(seen) == sorted(numbers(300))


async def test_in_order_nothing_is_popped_ahead(cluster: FakeCluster) -> None:
    async with popping(cluster, orderly=True) as consumer:
        assert [loop._on_full for loop in consumer._engine.loops.values()] == [None]


@pytest.mark.usefixtures("quick")
async def test_messages_popped_ahead_of_a_close_are_given_back(cluster: FakeCluster) -> None:
    put(cluster, *numbers(96))
    cluster.faults.delay("pop", 0.01, times=2)
    held = cluster.faults.hold("pop", times=None)
    seen = 0
    async with MQClientInstance(ClientConfig(namesrv=cluster.namesrv)) as client:
        async with popping(cluster, client=client) as consumer:
            async for message in consumer:
                seen += 1
                if seen == 33:  # the first of the second pop
                    await held.wait(MOST_AHEAD)
                    await consumer.ack(message)
                    break
        assert len(cluster.broker.requests_of(CHANGE)) == 31  # what was in the buffer
        held.release()

        await cluster.broker.wait_for(CHANGE, 31 + 32)
