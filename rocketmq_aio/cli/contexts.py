"""Contexts: named connections in a file of the user, and `rmq context`."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from rocketmq_aio.errors import ConfigError

FILE: Final = "RMQ_CONFIG"
PLACE: Final = re.compile(r"\(at [a-z0-9, ]+\)$")  # of an error of TOML
CURRENT: Final = "RMQ_CONTEXT"
HEADER: Final = "# Contexts of rmq; secrets do not belong here: see `rmq context set --help`.\n"


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a connection; secret keys are in *credentials_file* or the environment."""

    namesrv: str | None = None
    namespace: str | None = None
    access_key: str | None = None
    credentials_file: str | None = None
    tls: bool | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    timeout: float | None = None

    def updated(self, given: Mapping[str, Any]) -> Context:
        """Return it with those of *given* that are not None."""
        changes = {name: value for name, value in given.items() if value is not None}
        return msgspec.structs.replace(self, **changes)


class Contexts(msgspec.Struct, forbid_unknown_fields=True):
    """All contexts, and the name of the current one."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        """Return a context; raise `ConfigError` if there is none of this name."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise ConfigError("context", name, f"there is no such context (known: {known})")
        return self.contexts[name]


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file: ``RMQ_CONFIG``, or in the user's folder for settings."""
    if path := environ.get(FILE):
        return Path(path)
    return Path(click.get_app_dir("rmq")) / "config.toml"


def load_contexts(environ: Mapping[str, str] = os.environ) -> Contexts:
    """Read the file; none is empty.

    :raises ConfigError: it cannot be read, or has unknown settings
    """
    import tomllib

    file = config_file(environ)
    try:
        return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), Contexts)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError) as error:  # includes errors of TOML, text and msgspec
        # Not its message: it could contain a secret that somebody wrote into the file.
        where = str(error) if isinstance(error, msgspec.ValidationError) else type(error).__name__
        if place := PLACE.search(str(error)):
            where = f"{where} {place[0]}"
        raise ConfigError(FILE, str(file), f"cannot be used: {where}") from None


def complete_contexts(_: object, incomplete: str) -> list[str]:
    """Return the contexts that begin with *incomplete*, for the shell."""
    with suppress(ConfigError):
        return sorted(name for name in load_contexts().contexts if name.startswith(incomplete))
    return []


def save_contexts(contexts: Contexts) -> None:
    """Replace the file; only the user can read it."""
    file = config_file()
    tables: dict[str, Mapping[str, Any]] = {"": {"current": contexts.current}}
    for name in sorted(contexts.contexts):
        tables[f"[contexts.{_toml(name)}]\n"] = msgspec.structs.asdict(contexts.contexts[name])
    text = "\n".join(head + _pairs(values) for head, values in tables.items())
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, delete=False
        ) as out:
            out.write(HEADER + text)
        Path(out.name).replace(file)
    except OSError as error:
        raise ConfigError(FILE, str(file), f"cannot be written: {error.strerror}") from error


def find_context(name: str | None, *, wanted: bool, environ: Mapping[str, str]) -> Context:
    """Return the context *name*, or the current one if *wanted*, or an empty one."""
    if name is None and not wanted:
        return Context()
    contexts = load_contexts(environ)
    name = name or environ.get(CURRENT) or contexts.current
    return Context() if name is None else contexts.get(name)


def _pairs(values: Mapping[str, Any]) -> str:
    return "".join(f"{k} = {_toml(v)}\n" for k, v in values.items() if v is not None)


def _toml(value: object) -> str:
    """Return a text, number or bool in TOML, whose strings accept the escapes of JSON."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
