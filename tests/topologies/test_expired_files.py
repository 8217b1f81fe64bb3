"""Cleaning of brokers: files that expired are deleted, by requests and not before.

Brokers begin to look for expired files one minute after their start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from random import randbytes  # they cannot be compressed
from typing import Final

import pytest

from rocketmq_aio import AdminClient, Message, Producer
from rocketmq_aio.admin.results import QueueStats
from rocketmq_aio.testing import Cluster
from tests.unit.remoting.until import until_done

FILE_BYTES: Final = 1024 * 1024
SECONDS: Final = 120.0
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "cleanResourceInterval": "500",
    "fileReservedTime": "0",
}


@pytest.fixture
def cluster(rocketmq_backend: str, rocketmq_version: str) -> Iterator[Cluster]:
    """A broker whose full files have expired at once."""
    with Cluster.start(
        rocketmq_version, backend=rocketmq_backend, broker_properties=SMALL_FILES
    ) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(namesrv=cluster.namesrv) as client:
        yield client


@pytest.mark.mqadmin("deleteExpiredCommitLog cleanExpiredCQ")
async def test_expired_files_and_their_queues_are_deleted(
    cluster: Cluster, admin: AdminClient
) -> None:
    for topic in ("old", "new"):
        await admin.topics.create(topic, queues=1)

    async def queue(topic: str) -> QueueStats:
        (each,) = (await admin.topics.stats(topic)).queues
        return each

    async with Producer("filling", namesrv=cluster.namesrv) as producer:
        await producer.send(Message("old", b"first"))
        for _ in range(4):
            await producer.send(Message("new", randbytes(FILE_BYTES // 2)))

    async def is_stored() -> bool:
        return (await queue("new")).max_offset == 4

    async def is_deleted() -> bool:
        return (await queue("new")).min_offset > 0

    await until_done(is_stored, "the messages", SECONDS)
    before = await queue("new")
    await admin.brokers.delete_expired_logs()
    await until_done(is_deleted, "the deletion", SECONDS)
    kept = await queue("old")
    await admin.brokers.clean_expired_queues()
    cleaned = await queue("old")

    assert (before.min_offset, before.max_offset) == (0, 4)
    assert (await queue("new")).max_offset == 4
    assert kept.max_offset == 1  # its message is deleted, the queue is not
    assert (cleaned.min_offset, cleaned.max_offset) == (0, 0)
