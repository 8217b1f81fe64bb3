"""The command ``rmq``: its commands, loaded when they are called, and its entry point."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from rocketmq_aio.cli.failures import ExitCode, exit_code, format_error
from rocketmq_aio.cli.output import print_error
from rocketmq_aio.cli.streams import drop_output

PACKAGE: Final = "rocketmq-aio"
PANELS: Final = {  # commands of each panel of the help: name, module, help
    "Messages": (
        ("produce", "produce", "Send lines of files or of standard input."),
        ("consume", "consume", "Print the messages of a topic, and follow it."),
        ("trace", "nouns", "Show the way of a message from its trace records."),
        ("dlq", "dlq", "List, show, resend and export dead letters."),
    ),
    "Watching": (
        ("lag", "group_lag", "Show the lag of groups."),
        ("top", "top", "Show rates of topics and the lag of groups on a live screen."),
        ("doctor", "doctor", "Check settings, servers, clocks and permissions."),
        ("bench", "bench", "Measure sending and receiving."),
    ),
    "Administration": tuple(
        (name, "nouns", text)
        for name, text in (
            ("topic", "Topics."),
            ("group", "Consumer groups."),
            ("offset", "Committed offsets of groups."),
            ("message", "Stored messages."),
            ("broker", "Brokers."),
            ("cluster", "Clusters."),
            ("namesrv", "Name servers."),
            ("controller", "Controllers, which choose masters."),
            ("acl", "Accounts and policies of access control."),
            ("user", "Users of access control 2.0."),
            ("lite", "Lite topics of 5.5."),
            ("static-topic", "Topics whose queues can be moved between brokers."),
        )
    ),
    "Other": (
        ("context", "context", "Profiles of connections."),
        ("completion", "context", "Print the completion script of a shell."),
        ("dev", "dev", "Run a RocketMQ for development, in memory, for clients of any language."),
        ("pipeline", "pipelines", "Pipelines between topics and files, on Spark."),
    ),
}
MODULES: Final = {name: module for panel in PANELS.values() for name, module, _ in panel}


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called; the help needs none of them."""

    def __init__(self, **about: Any) -> None:  # noqa: ANN401 - those of typer
        super().__init__(**about)
        self.commands = {
            name: TyperCommand(name, help=text, rich_help_panel=panel)
            for panel, commands in PANELS.items()
            for name, _, text in commands
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """Import the command that *args* begin with."""
        if args and args[0] in MODULES:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:  # noqa: ANN401 - a command of typer
    """Return the command *name*."""
    if name == "dev":
        return _dev_command()
    module = import_module(f"rocketmq_aio.cli.{MODULES[name]}")
    made = typer.main.get_command(module.apps[name] if hasattr(module, "apps") else module.app)
    made.name = name
    return made


def _dev_command() -> Any:  # noqa: ANN401
    """Return `rmq dev`, which parses its options itself, so that it needs no extra."""
    app = typer.Typer(add_completion=False)
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command("dev", add_help_option=False, context_settings=settings)
    def _dev(context: typer.Context) -> int:
        from rocketmq_aio.cli import dev

        return dev.run(context.args)

    return typer.main.get_command(app)


app = typer.Typer(
    name="rmq",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # tracebacks with values could show secrets
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done; 1 done, but not everywhere or with findings; 2 wrong option; "
    "3 failed; 130 stopped by a signal.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise  # the end of a completion
        drop_output()  # the reader of a help has enough
        return ExitCode.DONE
    except Exception as error:  # noqa: BLE001 - the end of the program: prints every error
        cause: Exception = error
        while isinstance(cause, ExceptionGroup):
            cause = cause.exceptions[0]
        print_error(format_error(cause))
        return exit_code(cause)
    if result == ExitCode.STOPPED and not isinstance(result, ExitCode):  # of typer
        print_error("stopped")
    return result if isinstance(result, int) else ExitCode.DONE
