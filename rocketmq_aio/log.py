"""Logging: structlog events through the standard library's ``rocketmq_aio`` logger.

The client sets no handler, no level and no global structlog configuration.  With
``logging.basicConfig()`` an application gets ``event key=value`` lines, followed by tracebacks.
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
    """Logs events with values; a disabled event costs one level check.

    structlog is imported with the first enabled event: it takes a third of the package's import
    time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(name)

    def debug(self, event: str, **values: object) -> None:
        """Log a step of the client."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._log(logging.DEBUG, event, values)

    def info(self, event: str, **values: object) -> None:
        """Log a normal event."""
        if self._logger.isEnabledFor(logging.INFO):
            self._log(logging.INFO, event, values)

    def warning(self, event: str, **values: object) -> None:
        """Log a problem that the client handles."""
        if self._logger.isEnabledFor(logging.WARNING):
            self._log(logging.WARNING, event, values)

    def error(self, event: str, **values: object) -> None:
        """Log a problem that the client cannot handle."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._log(logging.ERROR, event, values)

    def exception(self, event: str, **values: object) -> None:
        """Log an error with the current exception."""
        self.error(event, **{"exc_info": True, **values})

    def _log(self, level: int, event: str, values: dict[str, object]) -> None:
        try:
            bound = _bound(self._name)
        except (ImportError, OSError):  # without a free descriptor structlog cannot be imported
            exc_info = values.pop("exc_info", None)
            pairs = [f"{name}={value!r}" for name, value in {"event": event, **values}.items()]
            self._logger.log(level, "%s", " ".join(pairs), exc_info=exc_info)  # type: ignore[arg-type]
        else:
            bound.log(level, event, **values)


@cache
def _bound(name: str) -> FilteringBoundLogger:
    import structlog

    # Values are logged as repr: text from the network cannot forge a line.
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
    """Return the logger of module *name*, a child of ``rocketmq_aio``."""
    return EventLogger(name)
