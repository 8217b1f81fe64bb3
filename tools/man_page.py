"""The manual page ``rmq.1``, made of the commands: a hook of mkdocs, and a command.

python tools/man_page.py > rmq.1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from rocketmq_aio.cli.app import EXIT_CODES, HELP, PANELS, load
from rocketmq_aio.cli.arguments import Argument, Option

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

PAGE: Final = "guide/rmq.1"
SHARED: Final = ("Connection", "Spark")  # panels whose options are described once
ENVIRONMENT: Final = {
    "ROCKETMQ_NAMESRV, NAMESRV_ADDR": "Name servers, if no option and no context names some.",
    "ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY, ROCKETMQ_SECURITY_TOKEN": "Account.",
    "ROCKETMQ_NAMESPACE": "Namespace of topics and groups.",
    "RMQ_CONTEXT": "The current context.",
    "RMQ_CONFIG": "File of contexts.",
    "RMQ_NEW_SECRET": "Password or secret key for commands that set one.",
}
FILES: Final = {
    "~/.config/rmq/config.toml": "Contexts.",
    "~/.cache/rmq": "Names for the completion of shells, kept for 30 seconds.",
}


def on_files(files: Files, config: Any) -> Files:  # noqa: ANN401 - of mkdocs, which is untyped
    """Add the page to the site: a hook of mkdocs."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=man_page()))
    return files


def man_page() -> str:
    """Return the page in the macros of man(7)."""
    lines = [
        '.TH RMQ 1 "" "rocketmq\\-aio" "User Commands"',
        ".SH NAME",
        f"rmq \\- {_roff(HELP)}",
        ".SH SYNOPSIS",
        ".B rmq",
        ".I COMMAND",
        "[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]",
        ".SH DESCRIPTION",
        "Sends and reads messages, and administers Apache RocketMQ 4.9 and 5.x. ",
        "Each command prints its options and examples with \\fB\\-\\-help\\fR. ",
        "The options of the connection are described once, after the commands.",
    ]
    shared: dict[str, dict[str, Option]] = {panel: {} for panel in SHARED}
    for panel, commands in PANELS.items():
        lines.append(f".SH {_roff(panel.upper())}")
        for name, _, text in commands:
            lines += _command(name, text, shared)
    for panel, params in shared.items():
        lines.append(f".SH {panel.upper()} OPTIONS")
        lines += _options(params.values())
    lines += [".SH EXIT STATUS", _roff(EXIT_CODES)]
    for title, rows in (("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        lines.append(f".SH {title}")
        for name, text in rows.items():
            lines += [".TP", f".B {_roff(name)}", _roff(text)]
    return "\n".join([*lines, ""])


def _command(name: str, text: str, shared: dict[str, dict[str, Option]]) -> Iterator[str]:
    """Yield the sections of a command, or of its verbs; collect *shared* options."""
    command = load(name)
    context = click.Context(command, info_name=f"rmq {name}")
    if not isinstance(command, click.Group):
        yield from _section(f"rmq {name}", command, context, text, shared)
        return
    for verb in command.list_commands(context):
        made = command.get_command(context, verb)
        assert made is not None
        own = click.Context(made, info_name=f"rmq {name} {verb}")
        yield from _section(f"rmq {name} {verb}", made, own, text, shared)


def _section(
    name: str,
    command: click.Command,
    context: click.Context,
    text: str,
    shared: dict[str, dict[str, Option]],
) -> Iterator[str]:
    arguments = [each for each in command.params if isinstance(each, Argument)]
    own = []
    for each in command.params:
        if isinstance(each, Option):
            if each.panel in shared:
                shared[each.panel].setdefault(each.opts[-1], each)
            else:
                own.append(each)
    words = " ".join(f"\\fI{_roff(each.make_metavar(context))}\\fR" for each in arguments)
    yield f".SS {_roff(name)} {words}".rstrip()
    for paragraph in (command.help or text).split("\n\n"):
        yield _roff(" ".join(paragraph.split()))
        yield ".PP"
    for argument in arguments:
        if argument.text:
            yield from (".TP", f".I {_roff(argument.make_metavar(context))}", _roff(argument.text))
    yield from _options(own)
    _, _, examples = (command.epilog or "").partition("Examples:\n")
    if examples:
        yield from (".PP", "Examples:", ".PP", ".nf", ".RS")
        yield from map(_roff, (line.strip() for line in examples.splitlines()))
        yield from (".RE", ".fi")


def _options(options: Iterable[Option]) -> Iterator[str]:
    for each in options:
        context = click.Context(click.Command(""))
        record = each.get_help_record(context)
        assert record is not None
        yield from (".TP", f".B {_roff(record[0])}", _roff(record[1]))


def _roff(text: str) -> str:
    """Return *text* with the escapes of roff; a line does not begin with a macro."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped)


if __name__ == "__main__":
    sys.stdout.write(man_page())
