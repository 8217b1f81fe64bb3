"""The command ``rmq``: its nouns and its entry point."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final

import typer

from rocketmq_aio.cli import dev, pipelines
from rocketmq_aio.cli.failures import ExitCode, exit_code, format_error
from rocketmq_aio.cli.output import print_error

PACKAGE: Final = "rocketmq-aio"

app = typer.Typer(
    name="rmq",
    help="Apache RocketMQ at the command line.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # tracebacks with values could show secrets
    context_settings={"help_option_names": ["-h", "--help"]},
)
# One module per noun: each has a typer app of its own.
app.add_typer(pipelines.app, name="pipeline")


@app.command(
    "dev",
    help="Run a RocketMQ for development, in memory, for clients of any language.",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def _dev(context: typer.Context) -> int:
    return dev.run(context.args)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rmq {version(PACKAGE)}")
        raise typer.Exit


@app.callback()
def _root(
    shown: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Apache RocketMQ at the command line."""


def run(arguments: Sequence[str]) -> int:
    """Run ``rmq`` with *arguments* and return its exit code; print errors on one line."""
    try:
        result = app(list(arguments), prog_name="rmq", standalone_mode=False)
    except KeyboardInterrupt:
        print_error("stopped")
        return ExitCode.STOPPED
    except Exception as error:  # noqa: BLE001 - the end of the program: prints every error
        print_error(format_error(error))
        return exit_code(error)
    return result if isinstance(result, int) else ExitCode.DONE
