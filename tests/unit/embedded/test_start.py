"""Start of embedded clusters."""

from __future__ import annotations

from time import perf_counter

from rocketmq_aio.embedded import EmbeddedCluster
from tests.fakes.stopwatch import Stopwatch


async def test_a_cluster_starts_within_100_ms() -> None:
    async with EmbeddedCluster():
        pass  # sockets of the event loop are open now
    with Stopwatch() as passed:
        async with EmbeddedCluster():
            started = passed.seconds

    assert started < 0.1


def test_a_cluster_in_a_thread_starts_soon() -> None:
    durations = []
    for _ in range(3):
        began = perf_counter()
        with EmbeddedCluster():
            durations.append(perf_counter() - began)

    assert min(durations) < 0.5
