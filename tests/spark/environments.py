"""Interpreters without the package, and what ships it to them."""

from __future__ import annotations

import importlib
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

COMPILED: Final = ("msgspec", "msgpack", "pyarrow", "numpy", "numpy.libs")
PURE: Final = (
    "rocketmq_aio",
    "pyspark_rocketmq",
    "anyio",
    "structlog",
    "idna",
    "typing_extensions",
)
INSTALLED: Final = Path(sysconfig.get_path("purelib"))


def bare_environment(folder: Path, packages: Iterable[str] = COMPILED) -> Path:
    """Make an environment of *packages* alone, borrowed from ours; return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in packages:
        if (INSTALLED / name).exists():
            (folder / "lib" / version / "site-packages" / name).symlink_to(INSTALLED / name)
    return folder / "bin" / "python"


def sources(name: str) -> dict[str, Path]:
    """Path within a package folder -> file, for the package or module *name*."""
    place = importlib.import_module(name).__file__
    assert place is not None
    if not place.endswith("__init__.py"):
        return {Path(place).name: Path(place)}
    folder = Path(place).parent
    return {
        str(file.relative_to(folder.parent)): file
        for file in folder.rglob("*.py*")
        if file.suffix != ".pyc"
    }


def package_zip(target: Path) -> Path:
    """Pack what is pure Python, as it is shipped with --py-files."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in PURE:
            for inside, file in sources(name).items():
                archive.write(file, inside)
    return target


def environment_archive(folder: Path) -> Path:
    """Pack an environment that has everything, as venv-pack does; large packages stay links."""
    environment = folder / "environment"
    bare_environment(environment, (*COMPILED, *PURE[2:]))
    libraries = next(environment.glob("lib/python*/site-packages"))
    for name in PURE:
        for inside, file in sources(name).items():
            copy = libraries / inside
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
    archive = folder / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(environment, arcname=".")
    return archive
