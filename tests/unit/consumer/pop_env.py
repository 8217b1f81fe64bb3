"""Pop consumers on a scripted cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PopConfig
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.receipt import Receipt
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC
from tests.unit.consumer.parts import queue

RETRY_TOPIC: Final = f"%RETRY%{GROUP}_{TOPIC}"


def popper_of(
    cluster: FakeCluster,
    *,
    client: Any = None,  # noqa: ANN401 - as the constructor takes it
    **settings: Any,  # noqa: ANN401 - those of PopConfig
) -> PopConsumer:
    """Return a consumer that starts at the earliest offset by default."""
    config = PopConfig(**{"start_from": "earliest", "wait_seconds": 5, **settings})
    client = client or ClientConfig(namesrv=cluster.namesrv)
    return PopConsumer(GROUP, client=client, config=config)


@asynccontextmanager
async def popping(
    cluster: FakeCluster,
    selector: Any = "*",  # noqa: ANN401 - as `subscribe` takes it
    **arguments: Any,  # noqa: ANN401 - those of `popper_of`
) -> AsyncIterator[PopConsumer]:
    """A started consumer of the topic."""
    async with popper_of(cluster, **arguments) as consumer:
        await consumer.subscribe(TOPIC, selector)
        yield consumer


def bodies(taken: Iterable[MessageExt]) -> list[str]:
    return sorted(each.body.decode() for each in taken)


def hold_acks(broker: FakeBroker) -> Callable[[], None]:
    """Hold the responses to all acknowledgements; return what releases them."""
    held = broker.faults.hold("ack", broker=broker.name, times=None)

    def release() -> None:
        held.remove()
        held.release()

    return release


def invisible(cluster: FakeCluster) -> int:
    """Return how many messages are invisible."""
    return sum(len(broker.pops.invisible) for broker in cluster.brokers)


def popped(
    offset: int,
    queue_id: int = 0,
    expires_at: float = 100.0,
    *,
    received_at: float = 0.0,
    broker: str = "broker-a",
) -> PoppedMessage:
    receipt = Receipt(0, 0, 60_000, 1, "0", broker, queue_id, offset)
    of = queue(queue_id, broker)
    return PoppedMessage(
        of.topic,
        b"x",
        of,
        offset,
        b"",
        b"",
        group=GROUP,
        receipt=receipt,
        expires_at=expires_at,
        invisible_seconds=60.0,
        received_at=received_at,
    )
