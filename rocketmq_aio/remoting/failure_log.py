"""Failure log: logs each kind of failure once, for code that may fail with every request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_KINDS: Final = 100  # a hook could raise a new exception type each time


class FailureLog:
    """Logs the first failure of each kind, at most `MAX_KINDS` of them.

    :param log: the method of a logger, such as ``logger.warning``
    :param event: the name of the log event
    """

    def __init__(self, log: Callable[..., None], event: str) -> None:
        self._log = log
        self._event = event
        self._logged: set[tuple[int, type[BaseException]]] = set()

    def log_once(self, source: int, error: BaseException, **fields: object) -> None:
        """Log *error* with *fields*, unless an error of its type was logged for *source*."""
        kind = (source, type(error))
        if kind not in self._logged and len(self._logged) < MAX_KINDS:
            self._logged.add(kind)
            self._log(self._event, exc_info=error, **fields)
