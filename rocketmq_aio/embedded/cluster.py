"""Embedded cluster: a name server and brokers."""

from __future__ import annotations

import ssl
import string
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Final, Self

from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.embedded.broker.acl import AccountLike
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.broker.events import EventCallback
from rocketmq_aio.embedded.broker.state import MAX_BYTES
from rocketmq_aio.embedded.broker.store import READ_WRITE
from rocketmq_aio.embedded.clock import Clock
from rocketmq_aio.embedded.faults import Faults
from rocketmq_aio.embedded.loop_thread import LoopThread, from_any_thread
from rocketmq_aio.embedded.name_server import EmbeddedNameServer
from rocketmq_aio.embedded.server import HOST, EmbeddedServer
from rocketmq_aio.model.address import MAX_PORT

# a to z, then aa, ab, ...
NAMES: Final = [
    first + second for first in ("", *string.ascii_lowercase) for second in string.ascii_lowercase
]


@checked_arguments
class EmbeddedCluster:
    """Name server and brokers in memory, for development and tests; never for production.

    The brokers ``broker-a``, ``broker-b`` ... listen on loopback addresses::

        async with EmbeddedCluster(brokers=2, topics={"orders": 4}) as cluster:
            producer = Producer("group", namesrv=cluster.namesrv)

    ``with EmbeddedCluster() as cluster:`` runs it in a thread of its own. Then its methods, and
    those of its brokers, faults and clock, can be called from any thread; those that are awaited
    otherwise block, except `Fault.wait` where an event loop runs.

    :param brokers: number of masters
    :param version: "5.5.0" or "4.9.7", where brokers differ
    :param broker_versions: versions of the brokers, if they differ
    :param replicas: slaves per broker: they serve reads when the master does not run
    :param topics: names and numbers of queues
    :param auto_create_topics: a send creates its topic, the default of brokers
    :param auto_create_groups: members create their group, the default of brokers
    :param light_queues: ``enableLmq`` and ``enableMultiDispatch`` of brokers
    :param tls: accept TLS only
    :param accounts: enforce access control
    :param idle_seconds: close connections without traffic, and those of producers and members
        without a heartbeat, for so long, by `clock`, as real servers do after 120; default: never
    :param max_bytes: bytes of messages that a broker keeps; the oldest are deleted beyond
    :param host: address or name to listen on; every client that reaches it can read and write
        everything; message ids contain 127.0.0.1 instead of an IPv6 address
    :param port: of the name server; the brokers use the next ports (+ 1, + 4, + 7 ...) as far as
        they are free, and those less 2 as VIP channels.  Default: any free ones
    :raises ValueError: an argument is invalid
    :ivar faults: see `Faults`; brokers and the name server also have `kill`, `restart`, `freeze`
    :ivar clock: see `Clock`
    """

    broker_class: type[EmbeddedBroker] = EmbeddedBroker
    name_server_class: type[EmbeddedNameServer] = EmbeddedNameServer

    def __init__(
        self,
        brokers: int = 1,
        *,
        version: str = "5.5.0",
        broker_versions: Sequence[str] = (),
        replicas: int = 0,
        topics: Mapping[str, int] | None = None,
        auto_create_topics: bool = True,
        auto_create_groups: bool = True,
        light_queues: bool = False,
        tls: ssl.SSLContext | None = None,
        accounts: Sequence[AccountLike] = (),
        idle_seconds: float | None = None,
        max_bytes: int = MAX_BYTES,
        host: str = HOST,
        port: int = 0,
    ) -> None:
        if brokers > len(NAMES):
            raise ValueError(f"brokers={brokers}: expected 0 to {len(NAMES)}")
        if port > MAX_PORT:
            raise ValueError(f"port={port}: expected 0 (any free one) to {MAX_PORT}")
        if replicas > len(NAMES):
            raise ValueError(f"replicas={replicas}: expected 0 to {len(NAMES)}")
        versions = list(broker_versions) or [version] * brokers
        if (given := len(versions)) != brokers:
            raise ValueError(f"broker_versions has {given} entries: expected brokers={brokers}")
        self.thread = LoopThread()
        self.clock = Clock(self.thread)
        self.faults = Faults(self.clock, self.thread)
        options: dict[str, Any] = {"tls": tls, "host": host, "idle_seconds": idle_seconds}
        options |= {"clock": self.clock, "faults": self.faults, "thread": self.thread}
        self._name_server = self.name_server_class(version=version, **options, port=port)
        self._brokers = [
            self.broker_class(
                name=f"broker-{letters}",
                version=each,
                auto_create_topics=auto_create_topics,
                auto_create_groups=auto_create_groups,
                light_queues=light_queues,
                max_bytes=max_bytes,
                accounts=accounts,
                preferred_port=(port + offset if port and port + offset <= MAX_PORT else 0),
                **options,
            )
            for offset, letters, each in zip(count(1, 3), NAMES, versions, strict=False)
        ]
        for broker, each in zip(self.brokers, versions, strict=True):
            for _ in range(replicas):
                self.broker_class(name=broker.name, version=each, master=broker, **options)
            self.name_server.register(broker)
        for name, queues in (topics or {}).items():
            self.create_topic(name, queues)
        self._stack = AsyncExitStack()

    @property
    def namesrv(self) -> str:
        """Name server address for clients."""
        return self.name_server.address

    @property
    def name_server(self) -> EmbeddedNameServer:
        """The name server, which can be killed, restarted and frozen like a broker."""
        return self._name_server

    @property
    def brokers(self) -> Sequence[EmbeddedBroker]:
        """The masters."""
        return self._brokers

    @property
    def broker(self) -> EmbeddedBroker:
        """The first broker."""
        return self.brokers[0]

    @property
    def servers(self) -> list[EmbeddedServer]:
        """The brokers, their replicas and the name server."""
        replicas = [replica for broker in self.brokers for replica in broker.replicas]
        return [*self.brokers, *replicas, self.name_server]

    @from_any_thread
    def create_topic(self, name: str, queues: int = 4, perm: int = READ_WRITE) -> None:
        """Create a topic with *queues* queues on every broker.

        :raises ValueError: clients and brokers accept no such topic
        """
        for broker in self.brokers:
            broker.create_topic(name, queues, perm)

    @from_any_thread
    def create_group(self, name: str) -> None:
        """Create a consumer group on every broker."""
        for broker in self.brokers:
            broker.create_group(name)

    @from_any_thread
    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages on every broker."""
        for broker in self.brokers:
            broker.delete_topic(name)

    def on_event(self, callback: EventCallback) -> None:
        """Call *callback* with each stored message, and with what groups get and commit."""
        for broker in self.brokers:
            broker.on_event(callback)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:  # stops what has started if a start fails
            self.clock.start()
            stack.callback(self.clock.stop)
            for server in self.servers:
                await stack.enter_async_context(server)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:  # noqa: ANN401 - as the stack takes them
        self.faults.clear()
        await self._stack.__aexit__(*error)

    def __enter__(self) -> Self:
        self.thread.start()
        try:
            return self.thread.run(self.__aenter__())
        except BaseException:
            self.thread.stop()
            raise

    def __exit__(self, *error: object) -> None:
        if self.thread.forked:
            return  # the cluster belongs to the parent
        try:
            self.thread.run(self.__aexit__(*error))
        finally:
            self.thread.stop()
