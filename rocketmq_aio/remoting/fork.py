"""Fork handling: objects started by the parent refuse calls in a forked child."""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet

FORKED: Final = "was started before this process was forked; make and start a new one in the child"


def copy_error(what: object) -> TypeError:
    """Return the error for copying or pickling *what*, whose connections cannot be shared."""
    return TypeError(f"{what} cannot be copied or pickled: make one in the process that uses it")


class Started(Protocol):
    """An object that belongs to the process that started it."""

    def after_fork(self) -> None:
        """Make this copy refuse every call.

        Runs first in the child, without a running event loop.  Must not call the loop, whose
        selector is shared with the parent.
        """


_started: WeakSet[Started] = WeakSet()


def reset_after_fork(started: Started) -> None:
    """Call ``started.after_fork()`` in every child that is forked from now on."""
    _started.add(started)


def _after_fork_in_child() -> None:
    for each in list(_started):
        each.after_fork()
    _started.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_after_fork_in_child)
