"""Standard streams: closed ones, those that nobody reads, and prompts."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager


def open_closed_streams() -> None:
    """Open the standard streams that the parent process closed, on the null device.

    Otherwise a socket would get one of their descriptors.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def drop_output() -> None:
    """Send what Python still writes to standard output nowhere: it would fail at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def prompting() -> AbstractContextManager[None]:
    """Let the first signal end a prompt, which holds up the event loop of the command."""
    from rocketmq_aio.signals import stop_signals

    return stop_signals(_interrupt)


def _interrupt() -> None:
    raise KeyboardInterrupt
