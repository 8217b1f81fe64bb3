"""Compressed bodies between this client and the official Java one, in both directions."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import zlib
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

import pytest
from zlib_ng import zlib_ng

from rocketmq_aio import (
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
)
from rocketmq_aio.config.producer import Compression
from rocketmq_aio.protocol import compression
from rocketmq_aio.protocol.compression import fastest_zlib
from rocketmq_aio.testing import Cluster
from rocketmq_aio.testing.jars import fetch_jars
from tests.broker.reading import COMPRESSED, wait_for_messages
from tests.broker.reading_groups import in_thread

PEER: Final = Path(__file__).parent / "java" / "Peer.java"
SMALL: Final = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
KINDS: Final = {"zlib": 3, "lz4": 1, "zstd": 2}  # by their bits
SIZES: Final = (4096, 16_384, 1_000_000)  # minimum compressed size, a usual one, a large one
NAMES: Final = [f"{kind}-{size}" for kind in KINDS for size in SIZES]
PLAIN: Final = [f"zlib-{size + 1}" for size in SIZES]  # those of the standard library's zlib
SECONDS: Final = 300.0  # reached only by a hanging test


def body(name: str) -> bytes:
    """Return the text of the message *name*, the same for both clients."""
    size = int(name.partition("-")[2])
    return (f"{name} compresses well; " * (1 + size // len(name))).encode()[:size]


def java(version: str, folder: Path, *arguments: str, source: Path = PEER) -> str:
    """Run the official client of *version* and return what it prints."""
    places = [f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}"]
    options = [*SMALL, *shlex.split(os.environ.get("JAVA_OPT_EXT", "")), *places]
    command = ["java", *options, "-cp", f"{fetch_jars(version)}/*", str(source), *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, encoding="utf-8", check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_compressed(cluster: Cluster, topic: str, count: int = len(NAMES)) -> None:
    """Check that the broker stores all of them compressed, with the flag of the algorithm."""
    for stored in wait_for_messages(cluster, topic, count):
        kind, _, size = stored.properties["KEYS"].lower().partition("-")
        assert stored.sys_flag & COMPRESSED
        assert stored.sys_flag >> 8 & 7 == KINDS[kind]
        assert stored.raw_bytes < int(size) / 2


async def send(cluster: Cluster, topic: str, group: str, names: Iterable[str]) -> None:
    for name in names:
        config = ProducerConfig(compression=cast(Compression, name.partition("-")[0]))
        async with Producer(group, namesrv=cluster.namesrv, config=config) as producer:
            await producer.send(Message(topic, body(name), keys=name))


async def test_java_and_its_tools_read_compressed_bodies_of_this_client(
    rocketmq_cluster: Cluster,
    topic: str,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fastest_zlib() is zlib_ng
    await send(rocketmq_cluster, topic, group, NAMES)
    with monkeypatch.context() as patch:
        patch.setattr(compression, "fastest_zlib", lambda: zlib)
        await send(rocketmq_cluster, topic, group, PLAIN)
    sent = NAMES + PLAIN
    await in_thread(assert_compressed, rocketmq_cluster, topic, len(sent))

    arguments = ("read", rocketmq_cluster.namesrv, topic, group, str(len(sent)))
    printed = await in_thread(java, rocketmq_cluster.version, tmp_path, *arguments)
    shown = await in_thread(rocketmq_cluster.mqadmin, "printMsg", "-t", topic, "-d", "true")

    read = dict(line.split()[1:] for line in printed.splitlines() if line.startswith("read "))
    assert read == {name: sha256(body(name)).hexdigest() for name in sent}
    assert [name for name in sent if body(name).decode() not in shown] == []


async def test_compressed_bodies_of_java_are_read(
    rocketmq_cluster: Cluster, topic: str, group: str, tmp_path: Path
) -> None:
    kinds = ",".join(kind.upper() for kind in KINDS)
    sizes = ",".join(map(str, SIZES))
    arguments = ("send", rocketmq_cluster.namesrv, topic, kinds, sizes)
    await in_thread(java, rocketmq_cluster.version, tmp_path, *arguments)
    await in_thread(assert_compressed, rocketmq_cluster, topic)

    read: dict[str, bytes] = {}
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, namesrv=rocketmq_cluster.namesrv, config=config) as consumer:
        await consumer.subscribe(topic)
        async with asyncio.timeout(SECONDS):
            while len(read) < len(NAMES):
                read |= {named(message): message.body for message in await consumer.poll(1)}

    sent = [f"{kind.upper()}-{size}" for kind in KINDS for size in SIZES]
    assert read == {name: body(name) for name in sent}


def named(message: MessageExt) -> str:
    [name] = message.keys
    return name
