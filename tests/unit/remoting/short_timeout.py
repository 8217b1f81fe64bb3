"""A short timeout for the next request of a kind."""

from __future__ import annotations

from typing import Any

from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import RequestHeader


def shorten_next_timeout(client: MQClientInstance, code: int) -> None:
    """Let the next request of this kind end soon; the broker may not answer it."""
    remoting, left = client.remoting, [0.1]
    request = remoting.request

    async def soon(address: str, header: RequestHeader, *body: bytes, **how: Any) -> Command:  # noqa: ANN401 - those of `request`
        if header.code == code and left:
            how["timeout"] = left.pop()
        return await request(address, header, *body, **how)

    remoting.request = soon  # type: ignore[method-assign]
