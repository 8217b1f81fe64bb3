"""Running the coroutines of commands, and asking before they destroy something."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final

import click

from rocketmq_aio.cli.arguments import option, options
from rocketmq_aio.cli.output import print_note
from rocketmq_aio.cli.streams import prompting
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.signals import stop_signals

NOT_CONFIRMED: Final = "is needed, because nobody can be asked: standard input is no terminal"


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
        with prompting():
            return click.confirm(f"{action[0].upper()}{action[1:]}?", abort=True, err=True)


def run_async(work: Coroutine[Any, Any, int], *, on_signal: int | None = None) -> int:
    """Run *work* until it ends, or the first SIGINT or SIGTERM cancels it; return its exit code.

    :param on_signal: the exit code after a signal, where that is the normal end
    :raises KeyboardInterrupt: a signal, without *on_signal*; or a second signal
    """
    code = asyncio.run(_cancelled_by_signals(work))
    if code is None:
        code = on_signal
    if code is None:
        raise KeyboardInterrupt
    return code


async def _cancelled_by_signals(work: Coroutine[Any, Any, int]) -> int | None:
    loop, task, received = asyncio.get_running_loop(), asyncio.ensure_future(work), False

    def stop() -> None:
        nonlocal received
        if received:
            raise KeyboardInterrupt
        received = True
        loop.call_soon_threadsafe(task.cancel)

    with stop_signals(stop):
        try:
            return await task
        except asyncio.CancelledError:
            if not received:
                raise
            return None
