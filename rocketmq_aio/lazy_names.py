"""Lazy names: public names of a package that are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, table: Mapping[str, str]
) -> tuple[dict[str, str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return the module of each name, and ``__getattr__`` and ``__dir__`` of *package*.

    :param table: names, separated by spaces, by module
    """
    modules = {name: module for module, names in table.items() for name in names.split()}

    def load(name: str) -> Any:  # noqa: ANN401 - any public name
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return modules, load, known
