"""How sends may travel together: the settings of automatic batching."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.settings import check_count, check_most, check_seconds, settings

KIB: Final = 1024
MAX_BATCH_MESSAGES: Final = 1024  # per request: the broker answers with an id for each
MAX_LINGER_SECONDS: Final = 30.0


@settings
class AutoBatch:
    """Concurrent sends to one topic travel together.

    :param linger_seconds: the longest a message waits for others; 0 takes those together that are
        given in one turn of the event loop
    :param max_bytes: bodies and properties of one request; a larger message goes alone
    :param max_messages: of one request, at most 1024
    """

    linger_seconds: float = 0.005
    max_bytes: int = 128 * KIB
    max_messages: int = 256

    def __post_init__(self) -> None:
        check_seconds(self, "linger_seconds", zero=True)
        check_most(self, "linger_seconds", MAX_LINGER_SECONDS)
        check_count(self, "max_bytes", "max_messages")
        check_most(self, "max_messages", MAX_BATCH_MESSAGES)
