"""Time limits and order of the tests of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest


def limit_tests(items: Iterable[pytest.Item], folder: Path, seconds: float) -> None:
    """Set the timeout of tests in *folder* that have none.

    It covers tests only: fixtures may download RocketMQ, and have deadlines of their own.
    """
    for item in items:
        if folder in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(seconds, func_only=True))


def run_first(items: list[pytest.Item], modules: Sequence[str]) -> None:
    """Move the tests of *modules* to the front, so that a parallel run does not end with them."""
    ranks = {name: rank for rank, name in enumerate(modules)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(modules)))
