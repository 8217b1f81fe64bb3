"""All targets, and their shares of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.fuzz.files import FILES
from tests.fuzz.requests import REQUESTS
from tests.fuzz.target import Target
from tests.fuzz.wire import WIRE

TARGETS: Final = (*WIRE, *REQUESTS, *FILES)


def shares(targets: Sequence[Target], inputs: int) -> dict[str, int]:
    """Return how many of *inputs* each of *targets* gets, by weight."""
    total = sum(each.weight for each in targets)
    return {each.name: -(-inputs * each.weight // total) for each in targets}
