"""Jars of RocketMQ servers, downloaded from Maven Central once per version."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Final

from rocketmq_aio.testing.errors import ClusterError, UnavailableError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
PACKAGES: Final = {"java": "openjdk-17-jdk-headless", "mvn": "maven"}
WITHOUT_PROXY: Final = ("4.", "5.1.4")  # versions without a proxy in Maven Central, by prefix
DOWNLOAD_SECONDS: Final = 900.0
PROGRESS_SECONDS: Final = 5.0
TAIL_LINES: Final = 15

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>rocketmq-aio</groupId><artifactId>servers</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY: Final = """\
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-{name}</artifactId>
      <version>{version}</version>
    </dependency>"""


def cache_folder() -> Path:
    """Return the folder for jars: `ROCKETMQ_AIO_CACHE`, or a folder in the user's cache."""
    chosen = os.environ.get("ROCKETMQ_AIO_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "rocketmq_aio"


def fetch_jars(version: str) -> Path:
    """Return the folder with all jars of *version*; the first call downloads them.

    Concurrent processes wait for one download.  A folder under its final name is complete.

    :raises UnavailableError: a download is needed, and Java or Maven is missing, or the folder
        cannot be written
    :raises ClusterError: Maven failed, for example because there is no such version
    """
    folder = cache_folder() / "jars" / version
    if not folder.is_dir():
        require_programs("java", "mvn")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_name(f"{version}.lock")):
                if not folder.is_dir():
                    _download(version, folder)
        except OSError as error:  # a home that is read-only or full
            raise UnavailableError(
                f"RocketMQ {version} cannot be stored in {folder.parent} ({error});"
                " set ROCKETMQ_AIO_CACHE to another folder"
            ) from error
    return folder


def require_programs(*names: str) -> None:
    """Check that servers can be guarded, paused and killed here, and that their programs exist.

    :raises UnavailableError: on Windows; the message names the alternatives.  Or programs are
        missing; the message tells how to install them
    """
    if sys.platform == "win32":
        raise UnavailableError(
            "RocketMQ servers cannot be started as Java processes on Windows:"
            " use containers, or a cluster that ROCKETMQ_NAMESRV names"
        )
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        packages = " ".join(PACKAGES[name] for name in missing)
        raise UnavailableError(
            f"RocketMQ servers cannot be started because {' and '.join(missing)} cannot be found;"
            f" install with: apt-get install {packages}"
        )


def pom(version: str) -> str:
    """Return a Maven project that depends on the servers and the admin tool of *version*."""
    names = ["namesrv", "broker", "tools"]
    if not version.startswith(WITHOUT_PROXY):
        names.append("proxy")
    dependencies = [DEPENDENCY.format(name=name, version=version) for name in names]
    return POM.format(dependencies="\n".join(dependencies))


def _download(version: str, folder: Path) -> None:
    size = "40 jars, 30 MB" if version.startswith("4.") else "150 jars, 100 MB"
    logger.info("downloading RocketMQ %s from Maven Central, about %s", version, size)
    for stale in folder.parent.glob(f".{version}-*"):  # left by a killed download
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=folder.parent) as part:
        project = Path(part, "pom.xml")
        project.write_text(pom(version), encoding="utf-8")
        jars = Path(part, "lib")
        _run_maven(version, ["-f", str(project), PLUGIN, f"-DoutputDirectory={jars}"])
        if not list(jars.glob(f"rocketmq-broker-{version}*.jar")):
            raise ClusterError(f"Maven downloaded no broker of RocketMQ {version}")
        jars.rename(folder)


def _run_maven(version: str, arguments: list[str]) -> None:
    """Run Maven and log its progress every few seconds."""
    # Wrong checksums fail the build, because these jars will be executed.
    with subprocess.Popen(
        ["mvn", "-B", "--strict-checksums", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as maven:
        late = Timer(DOWNLOAD_SECONDS, maven.kill)
        late.start()
        try:
            assert maven.stdout is not None
            complaints = _follow(version, maven.stdout)
        except BaseException:
            maven.kill()
            raise
        finally:
            late.cancel()
    if maven.returncode != 0:
        if maven.returncode == -signal.SIGKILL:
            complaints.append(f"it was ended after {DOWNLOAD_SECONDS:g} s")
        tail = "\n".join(complaints[:TAIL_LINES])
        raise ClusterError(f"Maven cannot fetch RocketMQ {version}:\n{tail}")


def _follow(version: str, lines: Iterable[str]) -> list[str]:
    """Return Maven's warnings and errors; log its progress."""
    complaints: list[str] = []
    jars, logged_at = 0, time.monotonic()
    for line in lines:
        if line.startswith(("[ERROR]", "[WARNING]")):
            complaints.append(line.rstrip())
        jars += "Downloaded from" in line and ".jar (" in line
        if time.monotonic() - logged_at >= PROGRESS_SECONDS:
            logged_at = time.monotonic()
            logger.info("downloaded %s jars of RocketMQ %s", jars, version)
    return complaints


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w", encoding="utf-8") as lock:
        if sys.platform != "win32":
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # released by the kernel, even if this process is killed
        yield


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        print(fetch_jars(wanted))  # noqa: T201 - scripts read the folder
