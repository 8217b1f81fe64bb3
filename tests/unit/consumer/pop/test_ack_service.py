"""Background acknowledgements on a scripted service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

from rocketmq_aio.consumer.pop.ack_service import AckService, BackgroundAcks
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from tests.unit.consumer.pop_env import popped
from tests.unit.remoting.until import until


class Service:
    """Keeps the requests; each ends when the test says so."""

    def __init__(self) -> None:
        self.requests: list[tuple[list[PoppedMessage], asyncio.Event]] = []

    async def confirm(
        self, messages: Iterable[PoppedMessage]
    ) -> dict[PoppedMessage, RocketMQError]:
        end = asyncio.Event()
        self.requests.append((list(messages), end))
        await end.wait()
        return {}


async def test_flush_does_not_wait_for_later_acknowledgements() -> None:
    service = Service()
    tasks = BackgroundTasks("test", on_failure=lambda cause: None)
    await tasks.start()
    acks = BackgroundAcks(cast(AckService, service), tasks, on_lost=lambda message, error: None)
    acks.add(popped(0))
    await until(lambda: len(service.requests) == 1)
    acks.add(popped(1))
    flushing = asyncio.create_task(acks.flush())
    await asyncio.sleep(0)
    acks.add(popped(2, broker="broker-b"))
    service.requests[0][1].set()
    await until(lambda: len(service.requests) == 3)

    assert not flushing.done()  # the second one was added before
    acks.add(popped(3))
    first_of_a = next(end for given, end in service.requests[1:] if given[0].queue_offset == 1)
    first_of_a.set()
    await flushing
    await tasks.close()
