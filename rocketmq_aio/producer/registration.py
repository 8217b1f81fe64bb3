"""Having a broker know a producer before it gets what it will come back about."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

from rocketmq_aio.instance.instance import MQClientInstance


class Introductions:
    """Which brokers have heard of a producer, over the connections that stand."""

    def __init__(self, instance: MQClientInstance) -> None:
        self._instance = instance
        self._told: dict[str, int] = {}  # number of the connection, by address

    async def introduce(self, address: str, deadline: float) -> None:
        """Tell the broker at *address*, unless it knows; that takes half of the time at most.

        One that cannot be reached is left to the attempts of the send, which may find another.
        """
        number_of = self._instance.connection_number
        told = self._told.get(address) == number_of(address)
        if told and self._instance.remoting.is_connected(address):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout((deadline - monotonic()) / 2):
                if await self._instance.heartbeats.send(address) is None:
                    current = {at: n for at, n in self._told.items() if number_of(at) == n}
                    self._told = {**current, address: number_of(address)}
