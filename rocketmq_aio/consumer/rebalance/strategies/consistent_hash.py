"""Consistent hashing: a joining member moves no queues between the others."""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections.abc import Callable, Sequence
from copy import copy
from hashlib import md5
from typing import ClassVar, Final

from msgspec.structs import replace

from rocketmq_aio.config.validation import check_function, checked_count
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.values import MessageQueue

MAX_NODES: Final = 10_000  # of a member; each is hashed in every round


class AllocateConsistentHash:
    """Allocates each queue to the next member on a hash ring: uneven shares, few moves.

    Every member is on the ring *virtual_nodes* times; more nodes make shares more even.

    :param hash: ``text -> int`` in place of the Java client's (the first 4 bytes of MD5)
    :raises ConfigError: *virtual_nodes* is below 1 or above 10,000, *hash* cannot be called with a
        text, or is the built-in one
    """

    name: ClassVar[str] = "CONSISTENT_HASH"

    def __init__(
        self,
        virtual_nodes: int = 10,
        hash: Callable[[str], int] | None = None,  # noqa: A002 - what it is called everywhere
    ) -> None:
        checked_count("virtual_nodes", virtual_nodes, most=MAX_NODES)
        if hash is not None:
            check_function("hash", hash, "text", may_be_async=False)
        if hash is builtins.hash:
            raise ConfigError("hash", hash, "it differs in each process: members would not agree")
        self._virtual_nodes = virtual_nodes
        self._hash = hash or _java_hash
        self._outer: Callable[[str], str] = str

    def in_namespace(self, outer: Callable[[str], str]) -> AllocateConsistentHash:
        """Return the strategy that hashes topics with their namespace, as Java members do."""
        changed = copy(self)
        changed._outer = outer
        return changed

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues whose next node on the ring belongs to *client_id*."""
        if client_id not in client_ids:
            return []
        ring = {
            self._hash(f"{member}-{number}"): member
            for member in client_ids
            for number in range(self._virtual_nodes)
        }
        places = sorted(ring)
        return [queue for queue in queues if ring[self._next(places, queue)] == client_id]

    def _next(self, places: list[int], queue: MessageQueue) -> int:
        stored = replace(queue, topic=self._outer(queue.topic))
        at = bisect_left(places, self._hash(_java_text(stored)))
        return places[at % len(places)]  # the ring wraps around


def _java_hash(text: str) -> int:
    digest = md5(text.encode(errors="surrogatepass"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4])


def _java_text(queue: MessageQueue) -> str:
    """Return *queue* as the Java client prints it, so that all members hash the same text."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )
