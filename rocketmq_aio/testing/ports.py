"""Free ports for servers that keep them across restarts."""

from __future__ import annotations

import random
import socket
from collections import deque
from contextlib import ExitStack
from typing import Final

from rocketmq_aio.testing.errors import ClusterError

# Below the usual ephemeral ports, so that no connection takes the port of a stopped broker.
LOWEST: Final = 20_000
HIGHEST: Final = 32_000
TRIES: Final = 200

NAMESRV: Final = (0,)
HA_OFFSET: Final = 1  # of the port where a master serves its slaves
BROKER: Final = (0, -2, HA_OFFSET)  # a broker also listens on its port - 2 (VIP channel)

PROXY: Final = (0, 1)  # gRPC on p+1

# Handles of UDP sockets that reserve the TCP ports of the same numbers in all processes.
_reserved: Final = deque[int]()
MAX_RESERVED: Final = 200


def choose_port(offsets: tuple[int, ...] = NAMESRV) -> int:
    """Return a port p such that p + each offset is free on 127.0.0.1 and on all addresses.

    Ports of recent calls, also of other processes, count as taken: their servers may still be
    starting, or be stopped.
    """
    chance = random.SystemRandom()
    for _ in range(TRIES):
        port = chance.randrange(LOWEST, HIGHEST)
        wanted = [port + offset for offset in offsets]
        if are_free(wanted) and _reserve(wanted):
            return port
    raise ClusterError(f"no free port between {LOWEST} and {HIGHEST} in {TRIES} tries")


def _reserve(ports: list[int]) -> bool:
    """Reserve *ports* for this process, until many others are; return False if one is not free."""
    with ExitStack() as stack:
        made = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in ports]
        try:
            for each, port in zip(made, ports, strict=True):
                each.bind(("127.0.0.1", port))
        except OSError:
            return False
        _reserved.extend(each.detach() for each in made)
    while len(_reserved) > MAX_RESERVED:
        socket.close(_reserved.popleft())
    return True


def are_free(ports: list[int]) -> bool:
    """Return whether all *ports* are free on every address of this machine."""
    with ExitStack() as stack:
        for port in ports:
            listener = stack.enter_context(socket.socket())
            # As servers do it: ignore closed connections of the last owner.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
                listener.listen(1)
            except OSError:
                return False
    return True
