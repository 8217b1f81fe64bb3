"""Options of commands as fields of dataclasses, so that commands can share options."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import (
    Any,
    Final,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import click

from rocketmq_aio.cli.streams import drop_output
from rocketmq_aio.errors import ConfigError

A = TypeVar("A")
F = TypeVar("F", bound=Callable[[Any], int | Coroutine[Any, Any, int]])
HELP: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class Text(click.types.StringParamType):
    """A text; bytes of the shell that are not UTF-8 could neither be sent nor stored."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return *value* as a text; click.BadParameter if it is not UTF-8."""
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not UTF-8.", param, ctx)
        return text


SIMPLE: Final[dict[Any, click.ParamType[Any]]] = {
    str: Text(),
    int: click.INT,
    float: click.FLOAT,
    bool: click.BOOL,
    Path: click.Path(path_type=Path),
}


class FiniteRange(click.FloatRange):
    """A range of numbers without infinity and NaN, which is in every range of click."""

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return *value* as a number; click.BadParameter if it is none."""
        number = float(super().convert(value, param, ctx))  # type: ignore[arg-type]  # takes texts, too
        if not isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Option(click.Option):
    """An option; the help groups them by *panel*."""

    panel = "Options"


class Command(click.Command):
    """A command, whose help shows arguments and groups of options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options by panel."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            if isinstance(each, Argument):
                panels["Arguments"].append((each.make_metavar(ctx), each.text))
            elif (record := each.get_help_record(ctx)) is not None:
                panels.setdefault(getattr(each, "panel", "Options"), []).append(record)
        for panel, rows in panels.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


class Argument(click.Argument):
    """A positional argument with a help text, which `Command` shows."""

    text = ""

    def make_metavar(self, ctx: click.Context) -> str:
        """Return its name; in brackets if it is optional, with dots if there may be several."""
        name = self.human_readable_name
        name = name if self.required else f"[{name}]"
        return name if self.nargs == 1 else f"{name}..."


class Group(click.Group):
    """Commands by name; without one it prints its help."""

    def __init__(self, name: str, help: str = "") -> None:  # noqa: A002 - of click
        super().__init__(name, help=help, no_args_is_help=True, context_settings=HELP)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error for an unknown one names others."""
        name = args[0]
        is_option = name.startswith("-")
        if self.get_command(ctx, name) is None and not is_option and not ctx.resilient_parsing:
            from difflib import get_close_matches

            names = self.list_commands(ctx)
            others = get_close_matches(name, names) or names
            raise click.UsageError(
                f"no such command {name!r} of {ctx.command_path}: try {', '.join(others)}", ctx
            )
        return super().resolve_command(ctx, args)


@dataclass_transform(kw_only_default=True)
def options(cls: type[A]) -> type[A]:
    """Make *cls* a keyword-only dataclass, whose fields come from `option` and `argument`."""
    return dataclass(kw_only=True)(cls)


def option(text: str, *names: str, default: object = None, **about: Any) -> Any:  # noqa: ANN401
    """Return the field of an option with the help *text*; a flag has no ``--no-`` form.

    :param names: default: the name of the field
    :param default: MISSING: the option is required
    :param about: ``min`` and ``max`` of numbers, ``panel`` of the help, and ``complete``, which
        returns completions for a context and an incomplete text
    """
    about |= {"help": text, "names": names, "is_option": True}
    return field(default=default, metadata=about)


def argument(
    text: str,
    metavar: str | None = None,
    default: object = MISSING,
    **about: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Return the field of a positional argument with the help *text*; it is required by default."""
    about |= {"help": text, "metavar": metavar, "is_option": False}
    return field(default=default, metadata=about)


def command(app: click.Group, name: str, kind: type[Any], examples: str = "") -> Callable[[F], F]:
    """Register a function that takes a *kind* as the command *name* of *app*.

    The fields of *kind*, a class made by `options`, are the options.  The function, which may be
    a coroutine function, returns the exit code.  The help shows *examples*, one per line.
    """

    def register(function: F) -> F:
        hints = get_type_hints(kind)
        own: tuple[Field[Any], ...] = fields(kind)
        defaults = {each.name: each.default for each in own}

        def call(**given: Any) -> int:  # noqa: ANN401 - the fields of kind
            values = {
                name: _value(each, hints[name], defaults[name]) for name, each in given.items()
            }
            try:
                result = function(kind(**values))
                if isinstance(result, int):
                    return result
                from rocketmq_aio.cli.running import run_async  # a slow import

                return run_async(result)
            except ConfigError as error:
                if (name := shown.get(error.setting)) is None:
                    raise
                raise ConfigError(name, error.value, error.reason) from error
            except KeyboardInterrupt:
                raise click.Abort from None
            except BrokenPipeError:  # the reader, such as `head`, has enough
                drop_output()
                return 0

        params = {each.name: _parameter(each, hints[each.name]) for each in own}
        shown = {name.removeprefix("p_"): _shown(each) for name, each in params.items()}
        made = Command(
            name,
            callback=call,
            params=[*params.values()],
            help=inspect.getdoc(function),
            epilog=_epilog(examples),
            context_settings=HELP,
        )
        app.add_command(made)
        return function

    return register


def _shown(parameter: click.Parameter) -> str:
    """Return the name of an option or argument for errors."""
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name
    return next(name for name in parameter.opts if name.startswith("--"))


def _epilog(examples: str) -> str | None:
    """Return the examples as lines that are not wrapped."""
    lines = [f"  {line.strip()}" for line in examples.strip().splitlines()]
    return "\n".join(["\b", "Examples:", *lines]) if lines else None


def _value(given: Any, hint: object, default: object) -> Any:  # noqa: ANN401
    """Return the value of a field: lists instead of tuples, and members instead of their texts."""
    kind, is_list = _kind(hint)
    if is_list:
        return [*given] or (None if default is None else [])
    return kind(given) if _is_enum(kind) and given is not None else given


def _kind(hint: Any) -> tuple[Any, bool]:  # noqa: ANN401
    """Return the type of the text, and whether there may be several texts."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    is_list = get_origin(hint) is list
    return (get_args(hint)[0] if is_list else hint), is_list


def _is_enum(kind: Any) -> bool:  # noqa: ANN401
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def _parameter(each: Field[Any], hint: object) -> click.Parameter:
    about = each.metadata
    kind, is_list = _kind(hint)
    is_required = each.default is MISSING
    shared: dict[str, Any] = {"type": _type(kind, about), "required": is_required}
    if not is_required and not is_list:
        default = each.default
        shared["default"] = default.value if isinstance(default, StrEnum) else default
    if (complete := about.get("complete")) is not None:
        shared["shell_complete"] = lambda ctx, _, text: complete(ctx, text)
    if not about["is_option"]:
        made = Argument([each.name], metavar=about["metavar"], **shared, nargs=-1 if is_list else 1)
        made.text = about["help"]
        return made
    names = about["names"] or (f"--{each.name.replace('_', '-')}",)
    is_flag = kind is bool
    option = Option(
        [each.name, *names],
        help=about["help"],
        is_flag=is_flag or None,  # False: click lets a list have no value
        multiple=is_list,
        show_default="default" in shared and not is_flag and each.default not in (None, ""),
        **({**shared, "type": None} if is_flag else shared),
    )
    option.panel = about.get("panel", "Options")
    return option


def _type(kind: Any, about: Mapping[str, Any]) -> click.ParamType[Any]:  # noqa: ANN401
    least, most = about.get("min"), about.get("max")
    if _is_enum(kind):
        return click.Choice([str(each) for each in kind])
    if kind is int and (least, most) != (None, None):
        return click.IntRange(least, most)
    if kind is float and (least, most) != (None, None):
        return FiniteRange(least, most)
    return SIMPLE[kind]
