"""Builds with and without a compiler, and a core that is not of the source."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.core.building import HOOK, ROOT, compile_core, python

SHOW = "import rocketmq_aio; print(rocketmq_aio.compiled)"
NO_COMPILER = "/nonexistent/cc"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a wheel is built from."""
    folder = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("rocketmq_aio", "pyspark_rocketmq", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def build(
    source: Path, target: Path, *, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    arguments = ("-m", "hatchling", "build", "-t", "wheel", "-d", str(target))
    return python(*arguments, folder=source, check=check, **environment)


def contents(folder: Path) -> tuple[str, set[str], str]:
    """Return tag, file names and WHEEL metadata of the wheel in *folder*."""
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/WHEEL")]
        return file.stem.split("-", 2)[2], names, archive.read(metadata).decode()


def test_a_wheel_has_the_core_and_the_tag_of_the_interpreter(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path, ROCKETMQ_AIO_PURE="0")

    tag, names, metadata = contents(tmp_path)
    assert tag.startswith("cp3")
    assert "Root-Is-Purelib: false" in metadata
    assert f"Tag: {tag}" in metadata
    assert f"rocketmq_aio/{HOOK['file_name']()}" in names
    assert not [name for name in names if name.endswith(".c")]
    assert not list(source.rglob("*.so"))


@pytest.mark.parametrize("environment", [{"ROCKETMQ_AIO_PURE": "1"}, {"CC": NO_COMPILER}])
def test_a_wheel_without_the_core_is_pure(
    source: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    build(source, tmp_path, check=True, **environment)

    tag, names, metadata = contents(tmp_path)
    assert tag == "py3-none-any"
    assert "Root-Is-Purelib: true" in metadata
    assert not [name for name in names if name.endswith((".so", ".c"))]


def test_a_build_that_needs_the_core_fails_without_a_compiler(source: Path, tmp_path: Path) -> None:
    done = build(source, tmp_path, check=False, ROCKETMQ_AIO_PURE="0", CC=NO_COMPILER)

    assert done.returncode != 0
    assert NO_COMPILER in done.stderr


def test_a_core_of_another_source_is_not_used(source: Path) -> None:
    assert python("-c", SHOW, folder=source).stdout == "False\n"

    compile_core(source / "rocketmq_aio", root=source)
    current = python("-c", SHOW, folder=source)
    pure = python("-c", SHOW, folder=source, ROCKETMQ_AIO_PURE="1")
    with (source / "rocketmq_aio" / "_core.c").open("a") as file:
        file.write("/* changed */\n")
    stale = python("-c", SHOW, folder=source)
    required = python("-c", SHOW, folder=source, check=False, ROCKETMQ_AIO_PURE="0")

    assert (current.stdout, current.stderr) == ("True\n", "")
    assert pure.stdout == "False\n"
    assert stale.stdout == "False\n"
    assert "is not of this source" in stale.stderr
    assert "ImportError" in required.stderr
