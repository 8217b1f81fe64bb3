"""Start of embedded clusters, in CPU time, which a busy machine does not change."""

from __future__ import annotations

from time import process_time

from rocketmq_aio.embedded import EmbeddedCluster


async def test_a_cluster_starts_within_100_ms() -> None:
    used = []
    for _ in range(3):
        began = process_time()
        async with EmbeddedCluster():
            used.append(process_time() - began)

    assert min(used) < 0.1


def test_a_cluster_in_a_thread_starts_within_100_ms() -> None:
    used = []
    for _ in range(3):
        began = process_time()
        with EmbeddedCluster():
            used.append(process_time() - began)

    assert min(used) < 0.1
