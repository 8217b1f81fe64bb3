"""Logging: structlog events over the standard library, silent unless the application listens.

No handler, no level and no global structlog configuration is touched: an application that calls
``logging.basicConfig()`` sees ``event key=value`` lines under the ``rocketmq_aio`` logger, and the
traceback of a failure after its line.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structlog.typing import (
        EventDict,
        FilteringBoundLogger,
        ProcessorReturnValue,
        WrappedLogger,
    )

logging.getLogger("rocketmq_aio").addHandler(logging.NullHandler())


class EventLogger:
    """Events with values; one that nobody listens to costs a level check and nothing else.

    structlog is imported with the first event that somebody does listen to: it would be a third
    of the time that importing this package takes.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **values: object) -> None:
        """Something that helps to follow the client's steps."""
        if self._logger.isEnabledFor(logging.DEBUG):
            _bound(self._name).debug(event, **values)

    def info(self, event: str, **values: object) -> None:
        """Something that happens now and then and needs nobody."""
        if self._logger.isEnabledFor(logging.INFO):
            _bound(self._name).info(event, **values)

    def warning(self, event: str, **values: object) -> None:
        """Something that somebody should know, and that the client copes with."""
        if self._logger.isEnabledFor(logging.WARNING):
            _bound(self._name).warning(event, **values)

    def error(self, event: str, **values: object) -> None:
        """Something that the client cannot cope with."""
        if self._logger.isEnabledFor(logging.ERROR):
            _bound(self._name).error(event, **values)

    def exception(self, event: str, **values: object) -> None:
        """An error with the exception that is being handled."""
        self.error(event, **{"exc_info": True, **values})


@cache
def _bound(name: str) -> FilteringBoundLogger:
    import structlog

    # Values are shown as repr: text from the network cannot forge a line.
    line = structlog.processors.KeyValueRenderer(key_order=["event"], repr_native_str=True)

    def record(logger: WrappedLogger, name: str, values: EventDict) -> ProcessorReturnValue:
        # The record carries the exception: the application's formatter prints its traceback.
        exc_info = values.pop("exc_info", None)
        return (line(logger, name, values),), {"exc_info": exc_info}

    bound: FilteringBoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=(structlog.stdlib.filter_by_level, record),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return bound


def get_logger(name: str) -> EventLogger:
    """Return the logger of module *name*; its events reach handlers of ``rocketmq_aio`` only."""
    return EventLogger(name)
