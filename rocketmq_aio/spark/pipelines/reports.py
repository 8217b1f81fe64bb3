"""Who hears how far a pipeline is."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    """Hears how far a step of a pipeline is; it may be called from any thread."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Of the step *what*, *done* of *total* is done; the total may grow."""


def quiet(what: str, done: int, total: int) -> None:
    """Tell nobody."""
