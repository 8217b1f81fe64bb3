"""The command ``rmq``; all but ``rmq dev`` needs the extra ``rocketmq-aio[cli]``."""

from __future__ import annotations

import sys
from typing import Final

from rocketmq_aio.cli.streams import drop_output, open_closed_streams, write_error, write_utf8

NEEDED: Final = ("click", "rich")
STOPPED: Final = 130  # `ExitCode.STOPPED`, which may not be imported yet


def main() -> None:
    """Run the command of this process and end with its exit code."""
    open_closed_streams()
    write_utf8()
    try:
        code = _run()
    except KeyboardInterrupt:  # during imports
        write_error("rmq: stopped")
        code = STOPPED
    try:
        sys.stdout.flush()
    except OSError:  # reported by the command; at its end Python would write the rest again
        drop_output()
    sys.exit(code)


def _run() -> int:
    if sys.argv[1:2] == ["dev"]:
        from rocketmq_aio.cli import dev

        return dev.run(sys.argv[2:])
    try:
        from rocketmq_aio.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        from rocketmq_aio.errors import missing_extra

        write_error(f"rmq needs {error.name}: {missing_extra('cli')}")
        return 2  # the exit code for missing extras
    return run(sys.argv[1:])
