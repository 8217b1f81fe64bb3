"""Rate limits: splits ``maxOffsetsPerTrigger`` over the queues of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping

from rocketmq_aio.spark.offsets import Offsets, Queue


def backlog(start: Mapping[Queue, int], latest: Mapping[Queue, int]) -> Offsets:
    """Return the number of unread offsets by queue, without empty queues."""
    return {
        queue: latest[queue] - offset
        for queue, offset in start.items()
        if latest.get(queue, offset) > offset
    }


def split_limit(waiting: Mapping[Queue, int], most: int) -> Offsets:
    """Return how many offsets of each queue to read: *most* in total, in proportion to *waiting*.

    Each queue gets at least one, even if the total then exceeds *most*.
    """
    total = sum(waiting.values())
    if total <= most:
        return dict(waiting)
    rest, ones = max(0, most - len(waiting)), len(waiting)
    spare = max(1, total - ones)  # beyond one for each; may be 0
    exact = {queue: divmod(rest * (size - 1), spare) for queue, size in waiting.items()}
    left = rest - sum(whole for whole, _ in exact.values())
    first = sorted(exact, key=lambda queue: (-exact[queue][1], queue))[:left]
    extra = dict.fromkeys(first, 1)
    return {queue: 1 + whole + extra.get(queue, 0) for queue, (whole, _) in exact.items()}
