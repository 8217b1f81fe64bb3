"""Embedded name server of the fault tests."""

from rocketmq_aio.embedded.name_server import EmbeddedNameServer as FakeNameServer

__all__ = ["FakeNameServer"]
