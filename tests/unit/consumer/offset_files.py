"""Offset files in a temporary folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rocketmq_aio.consumer.offsets.local_file import Disk, LocalFileOffsetStore
from rocketmq_aio.model.values import MessageQueue
from tests.unit.consumer.parts import commit

CLIENT: Final = "10.0.0.1@DEFAULT"

# Written by LocalFileOffsetStore of the Java client.
JAVA_497: Final = (
    b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n'
    b'\t\t\t"topic":"orders"\n\t\t}:1007,{\n\t\t\t"brokerName":"broker-b",\n'
    b'\t\t\t"queueId":2,\n\t\t\t"topic":"orders"\n\t\t}:2007\n\t}\n}'
)
JAVA_550: Final = (
    b'{\n\t"offsetTable":{\n\t\t{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n'
    b'\t\t\t"topic":"orders"\n\t\t}:1007,\n\t\t{\n\t\t\t"brokerName":"broker-b",\n'
    b'\t\t\t"queueId":2,\n\t\t\t"topic":"orders"\n\t\t}:2007\n\t}\n}'
)


@asynccontextmanager
async def opened(
    folder: Path, client_id: str = CLIENT, group: str = "billing", disk: Disk | None = None
) -> AsyncIterator[LocalFileOffsetStore]:
    store = LocalFileOffsetStore(folder, disk=disk)
    store.bind(client_id, group)
    try:
        await store.load()
        yield store
    finally:
        await store.close()


async def save(folder: Path, offsets: dict[MessageQueue, int]) -> None:
    async with opened(folder) as store:
        await commit(store, offsets)


def file_in(folder: Path, name: str = "offsets.json") -> Path:
    return folder / CLIENT / "billing" / name


def put_file(folder: Path, content: bytes, name: str = "offsets.json") -> Path:
    path = file_in(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / CLIENT / "billing").iterdir())
