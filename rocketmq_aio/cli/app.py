"""The command ``rmq``: its commands, loaded when they are called, and its entry point."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from rocketmq_aio.cli.arguments import Command, Group
from rocketmq_aio.cli.failures import ExitCode, exit_code, format_error
from rocketmq_aio.cli.output import print_error, print_note
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
    "Administration": (
        *(
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
        ("metadata", "metadata", "Topics and groups with their settings, to a file and from it."),
    ),
    "Other": (
        ("context", "context", "Named connections."),
        ("completion", "context", "Print the completion script of a shell."),
        ("dev", "dev", "Run a RocketMQ for development, in memory, for clients of any language."),
        ("pipeline", "pipelines", "Pipelines between topics and files, on Spark."),
    ),
}
MODULES: Final = {name: module for panel in PANELS.values() for name, module, _ in panel}


HELP: Final = "Apache RocketMQ at the command line."
EXIT_CODES: Final = (
    "Exit codes: 0 done; 1 done, but not everywhere or with findings; 2 wrong option; "
    "3 failed; 130 stopped by a signal."
)


class Rmq(Group):
    """All commands; each is imported when it is called, the help needs none of them."""

    def __init__(self) -> None:
        super().__init__("rmq", HELP)
        self.epilog = EXIT_CODES
        self.params.append(
            click.Option(
                ["--version"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_show_version,
                help="Show the version.",
            )
        )
        for commands in PANELS.values():
            for name, _, text in commands:
                self.add_command(Command(name, help=text))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command that *args* begin with."""
        if args and args[0] in MODULES:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by panel."""
        for panel, commands in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name, text) for name, _, text in commands])


def load(name: str) -> click.Command:
    """Return the command *name*."""
    if name == "dev":
        return _dev_command()
    module = import_module(f"rocketmq_aio.cli.{MODULES[name]}")
    app: Group = module.apps[name] if hasattr(module, "apps") else module.app
    return app.get_command(click.Context(app), name) or app  # alone, or of a group


def _dev_command() -> click.Command:
    """Return `rmq dev`, which parses its options itself, so that it needs no extra."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @click.command("dev", add_help_option=False, context_settings=settings)
    @click.pass_context
    def _dev(context: click.Context) -> int:
        from rocketmq_aio.cli import dev

        return dev.run(context.args)

    return _dev


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"rmq {version(PACKAGE)}")
        context.exit()


app: Final = Rmq()


def run(arguments: Sequence[str]) -> int:
    """Run ``rmq`` with *arguments* and return its exit code; print errors on one line."""
    stdout, stderr = sys.stdout, sys.stderr
    try:
        result = app(list(arguments), prog_name="rmq", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as missing:
        print_note(missing.format_message())
        return ExitCode.USAGE
    except KeyboardInterrupt:
        print_error("stopped")
        return ExitCode.STOPPED
    except SystemExit:
        if sys.stdout is stdout:
            raise  # the end of a completion
        sys.stdout, sys.stderr = stdout, stderr  # click wraps them when nobody reads the help
        drop_output()
        return ExitCode.DONE
    except Exception as error:  # noqa: BLE001 - the end of the program: prints every error
        cause: Exception = error
        while isinstance(cause, ExceptionGroup):
            cause = cause.exceptions[0]
        print_error(format_error(cause))
        return exit_code(cause)
    return result if isinstance(result, int) else ExitCode.DONE
