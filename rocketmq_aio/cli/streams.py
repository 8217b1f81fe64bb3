"""Standard streams: closed ones, and those that nobody reads."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


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


def write_utf8() -> None:
    """Write UTF-8 to files and pipes, as `rmq produce --json` and others read JSON.

    A terminal with another encoding gets escapes for characters that it lacks.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = sys.stdout.encoding if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def drop_output(stream: TextIO | None = None) -> None:
    """Send what Python still writes to standard output nowhere: it would fail at the end.

    :param stream: another one
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, (stream or sys.stdout).fileno())
    os.close(nowhere)


def write_error(text: str) -> None:
    """Write lines to standard error; if nobody reads them, the command has its exit code still."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except BrokenPipeError:
        drop_output(sys.stderr)
