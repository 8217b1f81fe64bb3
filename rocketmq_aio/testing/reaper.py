"""Reaper process: removes the containers of a killed test run.

Runs as a script for a cluster of containers without another reaper:

    python reaper.py OWNER_PID LABEL

A line on standard input means that the owner has cleaned up. If the input ends without one,
or the owner has ended, every container and network with LABEL is removed.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from typing import Final

OWNER_CHECK_SECONDS: Final = 1.0  # only for an owner whose fork still holds our standard input


def main(arguments: Sequence[str]) -> None:
    owner, label = arguments
    if is_orphaned(int(owner)):
        remove(label)


def is_orphaned(owner: int) -> bool:
    while os.getppid() == owner:
        ready, _, _ = select.select([0], [], [], OWNER_CHECK_SECONDS)
        if ready:
            return not os.read(0, 1)
    return True


def remove(label: str) -> None:
    import docker  # a slow import that is rarely needed

    client = docker.from_env()
    chosen: dict[str, str | list[str] | bool] = {"label": label}
    for container in client.containers.list(all=True, filters=chosen):
        container.remove(force=True, v=True)
    for network in client.networks.list(filters=chosen):
        network.remove()
    client.close()


if __name__ == "__main__":
    main(sys.argv[1:])
