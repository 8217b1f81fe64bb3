"""The command ``rmq``; all but ``rmq dev`` needs the extra ``rocketmq-aio[cli]``."""

from __future__ import annotations

import sys
from typing import Final

from rocketmq_aio.errors import missing_extra

NEEDED: Final = ("typer", "rich")


def main() -> None:
    """Run the command of this process and end with its exit code."""
    if sys.argv[1:2] == ["dev"]:
        from rocketmq_aio.cli import dev

        sys.exit(dev.run(sys.argv[2:]))
    try:
        from rocketmq_aio.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        sys.stderr.write(f"rmq needs {error.name}: {missing_extra('cli')}\n")
        sys.exit(2)  # the exit code for missing extras
    sys.exit(run(sys.argv[1:]))
