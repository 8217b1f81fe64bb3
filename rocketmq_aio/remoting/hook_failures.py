"""Failures of hooks: each kind is logged once, because a hook may fail with every request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.log import get_logger

logger = get_logger(__name__)

MAX_KINDS: Final = 100  # failures that are logged; a hook could make new exception types each time

Call = tuple[object, Callable[[Any], object]]  # a hook, and what is called of it


class Failures:
    """Calls hooks and logs each kind of failure once.

    :param event: the name of the log event
    """

    def __init__(self, event: str = "hook_failed") -> None:
        self._event = event
        self._logged: set[tuple[int, type[BaseException]]] = set()

    def tell(self, calls: Iterable[Call], context: object) -> None:
        """Make all *calls*, in order; what one of them raises changes nothing."""
        for hook, call in calls:
            try:
                call(context)
            except APPLICATION_ERRORS as error:
                self.note(hook, error)

    def note(self, hook: object, error: BaseException) -> None:
        """Log that *hook* raised *error*, unless this kind of failure is logged already."""
        kind = (id(hook), type(error))
        if kind not in self._logged and len(self._logged) < MAX_KINDS:
            self._logged.add(kind)
            logger.error(self._event, hook=type(hook).__qualname__, exc_info=error)
