"""Stop signals: handlers for SIGINT and SIGTERM, shared by all listeners in the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _StopSignals:
    """Replaces the program's handlers while there are listeners.

    Uses `signal.signal`, not `loop.add_signal_handler`: it works on every event loop and platform,
    and the previous handler can be restored.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[], object]] = []
        self._replaced: dict[signal.Signals, Any] = {}  # the program's handlers
        self._process = 0

    def add(self, listener: Callable[[], object], more: Iterable[signal.Signals]) -> None:
        if self._process != os.getpid():  # forked: the listeners are the parent's
            self._listeners.clear()
            self._process = os.getpid()
        self._listeners.append(listener)
        for number in (*STOP_SIGNALS, *more):
            if signal.getsignal(number) != self._handle:
                self._replaced[number] = signal.signal(number, self._handle)

    def remove(self, listener: Callable[[], object]) -> None:
        if listener in self._listeners:  # not one of the parent, in a forked child
            self._listeners.remove(listener)
        if not self._listeners:
            self._restore()

    def _restore(self) -> None:
        for number, handler in list(self._replaced.items()):
            # Otherwise the program has replaced it, and may put it back later.
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
                del self._replaced[number]

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._process != os.getpid() or not self._listeners:  # inherited by a fork, or put back
            self._restore()
            signal.raise_signal(number)
            return
        for listener in list(self._listeners):
            listener()


_stop_signals = _StopSignals()


@contextmanager
def stop_signals(on_signal: Callable[[], object], *more: signal.Signals) -> Iterator[None]:
    """Call *on_signal*, in the signal handler, on SIGINT, SIGTERM and *more* during the block.

    Blocks may overlap; the program's handlers are replaced until the last one ends.  Outside the
    main thread, which cannot handle signals, the block does nothing.
    """
    if current_thread() is not main_thread():
        yield
        return
    try:
        _stop_signals.add(on_signal, more)
        yield
    finally:
        _stop_signals.remove(on_signal)
