"""Confirmation of commands that destroy something."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from rocketmq_aio.cli.arguments import option, options
from rocketmq_aio.cli.output import print_note
from rocketmq_aio.cli.stop_flag import interruptible
from rocketmq_aio.errors import ConfigError

NOT_CONFIRMED: Final = "is needed, because nobody can be asked: standard input is no terminal"
INTERRUPTED: Final = "interrupted: some servers may be changed, others not; run it again, or check"


@contextmanager
def changing() -> Iterator[None]:
    """Say that a change may be done in part if a signal cancels the block."""
    try:
        yield
    except CancelledError:
        print_note(INTERRUPTED)
        raise


@options
class ChangeArguments:
    """Options of commands that destroy something."""

    yes: bool = option("Do not ask.", "--yes", "-y", default=False)
    dry_run: bool = option("Show what would be done, and change nothing.", default=False)

    def confirm(self, action: str) -> bool:
        """Return whether *action*, a phrase such as "delete topic x", is to be done.

        :raises ConfigError: nobody can be asked
        :raises click.Abort: the user declined
        """
        if self.dry_run:
            print_note(f"dry run: would {action}")
            return False
        if self.yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigError("--yes", None, f"{NOT_CONFIRMED} (to {action})")
        with interruptible():
            return click.confirm(f"{action[0].upper()}{action[1:]}?", abort=True, err=True)
