"""Average allocation: equal shares, as blocks or in round-robin order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rocketmq_aio.model.values import MessageQueue


class AllocateAveragely:
    """Contiguous blocks; the first members get one queue more if the division has a remainder."""

    name: ClassVar[str] = "AVG"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the block of *client_id*; nothing when it is not listed."""
        if client_id not in client_ids:
            return []
        index = client_ids.index(client_id)
        share, surplus = divmod(len(queues), len(client_ids))
        start = index * share + min(index, surplus)
        return list(queues[start : start + share + (index < surplus)])


class AllocateAveragelyByCircle:
    """Queues in round-robin order."""

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every n-th queue from the index of *client_id*; nothing when it is not listed."""
        if client_id not in client_ids:
            return []
        return list(queues[client_ids.index(client_id) :: len(client_ids)])
