"""Class archives: a JVM that maps one needs about half of the CPU time to start.

An archive is made once per JVM and version of the jars, and kept with the jars of RocketMQ.  A JVM
that it does not fit starts without it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

from rocketmq_aio.testing.jars import cache_folder

KEPT: Final = 4  # archives of a product, up to 200 MB each
QUICK: Final = "-XX:-UseG1GC -XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # short-lived JVMs
SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"  # about classes that cannot be archived


def class_archive(product: str, version: str, jars: Path, make: Callable[[Path], None]) -> Path:
    """Return the archive of *jars*, made if there is none; concurrent processes wait for one.

    :param make: writes it to a path; if it writes nothing, there is no archive
    """
    archive = cache_folder() / f"{product}-{version}-{_digest(jars)}.jsa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with _locked(archive.parent / f"{product}.lock"):
        if not archive.exists():
            _remove_least_recently_used(archive.parent, product, keep=KEPT - 1)
            with tempfile.TemporaryDirectory(dir=archive.parent, prefix="making-") as folder:
                made = Path(folder, "made.jsa")
                make(made)
                if made.exists():
                    made.rename(archive)
        if archive.exists():
            os.utime(archive)
    return archive


def _remove_least_recently_used(folder: Path, product: str, *, keep: int) -> None:
    """Remove all archives of *product* but the *keep* that were used last."""
    archives = sorted(folder.glob(f"{product}-*.jsa"), key=lambda path: path.stat().st_mtime_ns)
    for old in archives[: max(len(archives) - keep, 0)]:
        old.unlink()


def _digest(jars: Path) -> str:
    """Return a digest of the JVM and the jars: a JVM takes no archive of others."""
    java = Path(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if not java.exists():
        java = Path(shutil.which("java") or "")
    places = (java.resolve(), jars)
    stamps = [f"{place} {place.stat().st_mtime_ns}" for place in places]
    return sha256("\n".join(stamps).encode()).hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
