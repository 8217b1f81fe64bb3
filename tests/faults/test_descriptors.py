"""Clients of a process that has no free file descriptor."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rocketmq_aio import ClientConfig, Message, Producer, ProducerConfig, RocketMQError
from tests.fakes.cluster import FakeCluster
from tests.unit.remoting.until import succeeds, until_done


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """Let every new socket and file fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull, "rb") as lowest:
        first_free = lowest.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_client_without_free_descriptors_raises_and_recovers() -> None:
    async with FakeCluster(topics={"orders": 1}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv)
        sends = ProducerConfig(retries=0)
        async with Producer("shop", client=config, config=sends) as producer:
            with no_free_descriptors(), pytest.raises(RocketMQError, match="Too many open files"):
                await producer.send(Message("orders", b"refused"), timeout_seconds=1)
            await until_done(lambda: succeeds(producer.send(Message("orders", b"stored"))))

            assert [each.body for each in cluster.broker.messages("orders")] == [b"stored"]
