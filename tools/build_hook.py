"""Compiles the core of the package where there is a compiler; without one the wheel is pure Python.

``ROCKETMQ_AIO_PURE=1`` builds a pure wheel, ``ROCKETMQ_AIO_PURE=0`` fails where the core cannot be
compiled.  Run as a program it builds the core in place.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from sysconfig import get_config_var
from typing import Any, Final
from zlib import crc32

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = Path("rocketmq_aio", "_core.c")
PURE: Final = "ROCKETMQ_AIO_PURE"


class BuildError(Exception):
    """The core cannot be compiled here."""


def file_name() -> str:
    return f"_core{get_config_var('EXT_SUFFIX')}"


def compile_core(folder: Path, *, root: Path = ROOT, flags: Sequence[str] = ()) -> Path:
    """Compile the core into *folder* and return the file.

    :raises BuildError: there is no compiler, or it fails
    """
    source = root / SOURCE
    checksum = f"SOURCE_CHECKSUM={crc32(source.read_bytes())}UL"
    build = _compile_with_setuptools if sys.platform == "win32" else _compile
    target = folder / file_name()
    # A program that has the file loaded keeps the old one.
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        os.replace(build(source, Path(temporary), checksum, flags), target)
    return target


def _compile(source: Path, folder: Path, define: str, flags: Sequence[str]) -> Path:
    # The linker command of the interpreter compiles, too, and has the options of the platform.
    words = shlex.split(get_config_var("LDSHARED") or "cc -shared")
    if compiler := os.environ.get("CC"):
        words[:1] = shlex.split(compiler)
    elif shutil.which(words[0]) is None:
        words[0] = "cc"
    for variable in ("CFLAGS", "CCSHARED"):
        words += shlex.split(get_config_var(variable) or "")
    words += shlex.split(os.environ.get("ARCHFLAGS", "")) + shlex.split(
        os.environ.get("CFLAGS", "")
    )
    target = folder / file_name()
    words += [f"-I{get_config_var('INCLUDEPY')}", f"-D{define}", *flags, str(source)]
    try:
        done = subprocess.run(
            [*words, "-o", str(target)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BuildError(f"no C compiler: {error}") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(words)}\n{done.stderr}")
    return target


def _compile_with_setuptools(source: Path, folder: Path, define: str, flags: Sequence[str]) -> Path:
    from setuptools import Distribution, Extension  # type: ignore[import-untyped]
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]
    from setuptools.errors import BaseError  # type: ignore[import-untyped]

    name, _, value = define.partition("=")
    extension = Extension("_core", [str(source)], define_macros=[(name, value)])
    extension.extra_compile_args = list(flags)
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib, command.build_temp = str(folder), str(folder / "temporary")
    try:
        command.ensure_finalized()
        command.run()
    except BaseError as error:
        raise BuildError(str(error)) from error
    return folder / file_name()


class CoreHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled core to a wheel, whose tag then names interpreter and platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; in place if *version* is ``editable``."""
        pure = os.environ.get(PURE, "")
        if self.target_name != "wheel" or pure not in ("", "0") or not _is_cpython():
            return
        root = Path(self.root)
        in_place = root / SOURCE.parent
        self._folder = tempfile.TemporaryDirectory()
        try:
            if version == "editable":
                compile_core(in_place, root=root)
                return
            built = compile_core(Path(self._folder.name), root=root)
        except BuildError as error:
            if pure:
                raise
            self.app.display_warning(f"The wheel is pure Python: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(built)] = str(SOURCE.parent / built.name)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for the wheel."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _is_cpython() -> bool:
    return sys.implementation.name == "cpython"


if __name__ == "__main__":
    sys.stdout.write(f"{compile_core(ROOT / SOURCE.parent)}\n")
