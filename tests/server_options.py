"""Java options of the RocketMQ servers of tests, which start often and run for seconds."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]  # it has no stubs
import pytest

from rocketmq_aio import Message, Producer
from rocketmq_aio.testing import Cluster
from rocketmq_aio.testing.jars import fetch_jars
from tests.class_archive import QUICK, SILENT, class_archive

EXIT_SECONDS: Final = 120.0  # the JVM writes the archive


def server_options(version: str) -> str:
    """Return options for `JAVA_OPT_EXT`: cheap compilation, and the class archive of a broker."""
    archive = class_archive("rocketmq", version, fetch_jars(version), lambda to: _make(version, to))
    return f"{QUICK} {SILENT} -XX:SharedArchiveFile={archive}"


def _make(version: str, archive: Path) -> None:
    """Have a broker that stored a message write *archive* when it exits."""
    options = f"{QUICK} {SILENT} -XX:ArchiveClassesAtExit={archive}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_OPT_EXT", options)
        with Cluster.start(version, backend="jvm") as cluster:
            cluster.create_topic("archived", queues=1)
            asyncio.run(_send(cluster.namesrv))
            (broker,) = cluster.brokers
            assert broker.pid is not None
            process = psutil.Process(broker.pid)
            os.kill(broker.pid, signal.SIGTERM)
            process.wait(EXIT_SECONDS)  # the name server is killed and writes nothing


async def _send(namesrv: str) -> None:
    async with Producer("archives", namesrv=namesrv) as producer:
        await producer.send(Message("archived", b"hello"), timeout_seconds=30)
