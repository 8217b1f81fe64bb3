"""Stop signals: the one owner of SIGINT and SIGTERM in this process, for all that wait for them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _Owner:
    """Replaces the handlers of the program while somebody listens.

    `signal.signal` and not `loop.add_signal_handler`: it works on every event loop and platform,
    and what it replaces can be put back.
    """

    def __init__(self) -> None:
        self._listeners: list[Callable[[], object]] = []
        self._replaced: dict[signal.Signals, Any] = {}  # handlers of the program
        self._process = 0

    def add(self, listener: Callable[[], object]) -> None:
        if self._process != os.getpid():  # listeners before a fork are the parent's
            self._listeners.clear()
            self._process = os.getpid()
        self._listeners.append(listener)
        for number in STOP_SIGNALS:
            if number not in self._replaced:
                self._replaced[number] = signal.signal(number, self._handle)

    def remove(self, listener: Callable[[], object]) -> None:
        self._listeners.remove(listener)
        if not self._listeners:
            self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._replaced.items():
            if signal.getsignal(number) == self._handle:  # else the program has replaced it
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._replaced.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._process != os.getpid():  # a fork has inherited the handler
            self._put_back()
            signal.raise_signal(number)
            return
        for listener in list(self._listeners):
            listener()


_owner = _Owner()


@contextmanager
def stop_signals(on_signal: Callable[[], object]) -> Iterator[None]:
    """Call *on_signal* at every SIGINT and SIGTERM during the block; blocks may overlap.

    It is called inside the signal handler.  While any block lasts, the handlers of the program are
    not called; the last block that ends puts them back.  Outside of the main thread, where signals
    cannot be had, the block does nothing.
    """
    if current_thread() is not main_thread():
        yield
        return
    _owner.add(on_signal)
    try:
        yield
    finally:
        _owner.remove(on_signal)
