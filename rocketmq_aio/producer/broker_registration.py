"""Broker registration: makes sure a heartbeat precedes sends that the broker calls back about."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic

from rocketmq_aio.instance.instance import MQClientInstance


class BrokerRegistration:
    """The brokers that got a heartbeat with this producer over their current connections."""

    def __init__(self, instance: MQClientInstance) -> None:
        self._instance = instance
        self._registered: dict[str, int] = {}  # number of the connection, by address

    async def ensure_registered(self, address: str, deadline: float) -> None:
        """Send a heartbeat to the broker at *address* unless it has one; takes half of the time.

        A broker that cannot be reached raises nothing: the send may find another one.
        """
        number_of = self._instance.connection_number
        registered = self._registered.get(address) == number_of(address)
        if registered and self._instance.remoting.is_connected(address):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout((deadline - monotonic()) / 2):
                if await self._instance.heartbeats.send(address) is None:
                    current = {at: n for at, n in self._registered.items() if number_of(at) == n}
                    self._registered = {**current, address: number_of(address)}
