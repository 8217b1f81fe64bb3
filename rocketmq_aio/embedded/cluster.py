"""Embedded cluster: a name server and brokers."""

from __future__ import annotations

import ssl
import string
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from rocketmq_aio.embedded.broker.acl import AccountLike
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.broker.state import MAX_BYTES
from rocketmq_aio.embedded.broker.store import READ_WRITE
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.name_server import EmbeddedNameServer


class EmbeddedCluster:
    """Brokers ``broker-a``, ``broker-b`` ... registered at one name server.

    A stopped broker stays in the routes until ``name_server.unregister(broker)``: a real name
    server also needs time to notice.

    async with EmbeddedCluster(brokers=2, topics={"orders": 4}) as cluster:
        producer = Producer("group", namesrv=cluster.namesrv)
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        version: str = "5.5.0",
        replicas: int = 0,
        topics: Mapping[str, int] | None = None,
        auto_create_topics: bool = True,
        auto_create_groups: bool = True,
        tls: ssl.SSLContext | None = None,
        accounts: Sequence[AccountLike] = (),
        max_bytes: int = MAX_BYTES,
        port: int = 0,
    ) -> None:
        self.clock = Clock()
        self.replicas = replicas
        self.name_server = EmbeddedNameServer(version=version, tls=tls, port=port)
        self.brokers = [
            EmbeddedBroker(
                name=f"broker-{letter}",
                version=version,
                auto_create_topics=auto_create_topics,
                auto_create_groups=auto_create_groups,
                tls=tls,
                clock=self.clock,
                max_bytes=max_bytes,
                accounts=accounts,
            )
            for letter in string.ascii_lowercase[:brokers]
        ]
        for name, queues in (topics or {}).items():
            self.create_topic(name, queues)
        self._stack = AsyncExitStack()

    @property
    def namesrv(self) -> str:
        """Name server address for clients."""
        return self.name_server.address

    @property
    def broker(self) -> EmbeddedBroker:
        """The first broker."""
        return self.brokers[0]

    def create_topic(self, name: str, queues: int = 4, perm: int = READ_WRITE) -> None:
        """Create a topic with *queues* queues on every broker."""
        for broker in self.brokers:
            broker.create_topic(name, queues, perm)

    def create_group(self, name: str) -> None:
        """Create a consumer group on every broker."""
        for broker in self.brokers:
            broker.create_group(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages on every broker."""
        for broker in self.brokers:
            broker.delete_topic(name)

    async def __aenter__(self) -> Self:
        for broker in self.brokers:
            await self._stack.enter_async_context(broker)
            self.name_server.register(broker)
        await self._stack.enter_async_context(self.name_server)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
