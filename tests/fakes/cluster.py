"""Embedded cluster of the fault tests."""

from __future__ import annotations

from typing import cast

from rocketmq_aio.embedded.cluster import EmbeddedCluster
from tests.fakes.broker import FakeBroker
from tests.fakes.name_server import FakeNameServer


class FakeCluster(EmbeddedCluster):
    """Records frames; stopped brokers stay in the routes until they are unregistered."""

    broker_class = FakeBroker
    name_server_class = FakeNameServer

    @property
    def brokers(self) -> list[FakeBroker]:
        return cast(list[FakeBroker], super().brokers)

    @property
    def broker(self) -> FakeBroker:
        return self.brokers[0]

    @property
    def name_server(self) -> FakeNameServer:
        return cast(FakeNameServer, super().name_server)
