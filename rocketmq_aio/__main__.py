"""Versions, interpreter build and settings, for bug reports: ``python -m rocketmq_aio``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from sysconfig import get_config_var
from typing import Final

from rocketmq_aio import __version__
from rocketmq_aio.core import compiled

PACKAGES: Final = ("uvloop", "anyio", "msgspec", "lz4", "zstandard", "zlib-ng")
SECRETS: Final = ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN")


def facts(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what runs as (name, value); secrets in *environ* are hidden."""
    yield "rocketmq-aio", __version__
    yield "compiled core", "yes" if compiled else "no"
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    yield "Python", f"{interpreter}, {interpreter_build()}"
    yield "platform", platform.platform()
    for package in PACKAGES:
        yield package, _version(package)
    for name, value in sorted(environ.items()):
        if name.startswith("ROCKETMQ_") or name == "NAMESRV_ADDR":
            yield name, "***" if name.endswith(SECRETS) else value


def interpreter_build() -> str:
    """Return how the interpreter was built; distributions may not record their options."""
    optimized = "--enable-optimizations" in str(get_config_var("CONFIG_ARGS"))
    return "profile-guided optimization" if optimized else "no profile-guided optimization recorded"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def main() -> None:
    if sys.argv[1:]:
        sys.exit(f"unexpected {sys.argv[1]}: the command rmq is python -m rocketmq_aio.cli")
    found = list(facts(os.environ))
    width = max(len(name) for name, _ in found)
    lines = [f"{name:{width}}  {value}\n" for name, value in found]
    try:
        sys.stdout.writelines(lines)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has enough
        # Python flushes standard output again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
