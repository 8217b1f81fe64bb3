"""A short timeout for the next request of a kind."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.remoting.connection import MakeFrame, OnLate


def shorten_next_timeout(client: MQClientInstance, code: int) -> None:
    """Let the next request of this kind end soon; the broker may not answer it."""
    remoting, left = client.remoting, [0.1]
    exchange = remoting.exchange

    def soon(
        address: str, sent: int, frame: MakeFrame, timeout: float, on_late: OnLate | None = None
    ) -> Coroutine[Any, Any, Command]:
        seconds = left.pop() if sent == code and left else timeout
        return exchange(address, sent, frame, seconds, on_late)

    remoting.exchange = soon  # type: ignore[assignment]
