"""Options of commands as fields of dataclasses, so that commands can share options."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import typer

A = TypeVar("A")


def command(
    app: typer.Typer, name: str, kind: type[A]
) -> Callable[[Callable[[A], int]], Callable[[A], int]]:
    """Register a function that takes a *kind* as the command *name* of *app*.

    The fields of the dataclass *kind* and of its bases are the options, described by their
    annotations.  The function returns the exit code.
    """

    def register(function: Callable[[A], int]) -> Callable[[A], int]:
        def call(**given: Any) -> int:  # noqa: ANN401 - the fields of kind
            try:
                return function(kind(**given))
            except KeyboardInterrupt:  # typer would end without a message
                raise typer.Abort from None

        call.__doc__ = function.__doc__
        call.__signature__ = _signature(kind)  # type: ignore[attr-defined]
        app.command(name)(call)
        return function

    return register


def _signature(kind: type[Any]) -> inspect.Signature:
    hints = get_type_hints(kind, include_extras=True)
    return inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(each),
                annotation=hints[each.name],
            )
            for each in dataclasses.fields(kind)
        ]
    )


def _default(each: dataclasses.Field[Any]) -> object:
    if each.default is not dataclasses.MISSING:
        return each.default
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return inspect.Parameter.empty
