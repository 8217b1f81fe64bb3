"""The command ``rmq``; it needs the extra ``rocketmq-aio[cli]``."""

from __future__ import annotations

import sys
from typing import Final

NEEDED: Final = ("typer", "rich")


def main() -> None:
    """Run the command of this process and end with its exit code."""
    try:
        from rocketmq_aio.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        sys.stderr.write("rmq needs the extra [cli]: pip install 'rocketmq-aio[cli]'\n")
        sys.exit(2)  # as every missing extra
    sys.exit(run(sys.argv[1:]))
