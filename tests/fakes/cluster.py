"""Embedded cluster of the fault tests."""

from rocketmq_aio.embedded.cluster import EmbeddedCluster as FakeCluster

__all__ = ["FakeCluster"]
