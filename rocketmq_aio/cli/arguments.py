"""Options of commands as fields of dataclasses, so that commands can share options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import Parameter, Signature
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

import typer

from rocketmq_aio.cli.streams import drop_output

A = TypeVar("A")


@dataclass_transform(kw_only_default=True)
def options(cls: type[A]) -> type[A]:
    """Make *cls* a keyword-only dataclass, whose fields come from `option` and `argument`."""
    return dataclass(kw_only=True)(cls)


def option(text: str, *names: str, default: object = None, **about: Any) -> Any:  # noqa: ANN401
    """Return the field of an option with the help *text*; a flag has no ``--no-`` form.

    :param names: default: the name of the field
    :param default: MISSING: the option is required
    :param about: further arguments of `typer.Option`
    """
    about["help"] = text
    return field(default=default, metadata={"kind": typer.Option, "names": names, "about": about})


def argument(
    text: str,
    metavar: str | None = None,
    default: object = MISSING,
    **about: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Return the field of a positional argument with the help *text*; it is required by default."""
    about |= {"help": text, "metavar": metavar}
    return field(default=default, metadata={"kind": typer.Argument, "about": about})


def command(
    app: typer.Typer, name: str, kind: type[A], examples: str = ""
) -> Callable[[Callable[[A], int]], Callable[[A], int]]:
    """Register a function that takes a *kind* as the command *name* of *app*.

    The fields of *kind*, a class made by `options`, are the options.  The function returns the
    exit code.  The help shows *examples*, one per line.
    """

    def register(function: Callable[[A], int]) -> Callable[[A], int]:
        def call(**given: Any) -> int:  # noqa: ANN401 - the fields of kind
            try:
                return function(kind(**given))
            except KeyboardInterrupt:  # typer would end without a message
                raise typer.Abort from None
            except BrokenPipeError:  # the reader, such as `head`, has enough
                drop_output()
                return 0

        hints = get_type_hints(kind)
        parameters = [_parameter(each, hints[each.name]) for each in fields(kind)]  # type: ignore[arg-type]
        call.__doc__ = function.__doc__
        call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        app.command(name, epilog=_epilog(examples))(call)
        return function

    return register


def _epilog(examples: str) -> str | None:
    """Return the examples for rich, which needs an empty line between lines."""
    lines = [line.strip().replace("[", "\\[") for line in examples.strip().splitlines()]
    return "\n\n".join(["Examples:", *lines]) if lines else None


def _parameter(each: Field[Any], hint: object) -> Parameter:
    names = each.metadata.get("names", ())
    if each.metadata["kind"] is typer.Option and not names:
        names = (f"--{each.name.replace('_', '-')}",)
    info = each.metadata["kind"](*names, **each.metadata["about"])
    default = Parameter.empty if each.default is MISSING else each.default
    return Parameter(
        each.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, info]
    )
