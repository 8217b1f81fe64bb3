"""Embedded broker of the fault tests."""

from rocketmq_aio.embedded.broker.broker import EmbeddedBroker as FakeBroker

__all__ = ["FakeBroker"]
