"""A broker container of 5.x: a JVM in which brokers are started and stopped at run time."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rocketmq_aio.testing import conf
from rocketmq_aio.testing.jars import cache_folder, fetch_jars
from rocketmq_aio.testing.jvm import BROKER_MEMORY, UNSECURED, class_options, prepare_home
from rocketmq_aio.testing.ports import BROKER, choose_port
from rocketmq_aio.testing.server import BrokerSpec

COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
MAIN: Final = "org.apache.rocketmq.container.BrokerContainerStartup"
DOWNLOAD_SECONDS: Final = 300.0


class Container:
    """A container without brokers, and configurations of brokers for it."""

    def __init__(self, address: str, namesrv: str, folder: Path) -> None:
        self.address = address
        self._namesrv = namesrv
        self._folder = folder

    def config(self, name: str, version: str) -> str:
        """Return the path of a new configuration of broker *name*."""
        store = self._folder / name / "store"
        places = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
        spec = BrokerSpec(broker_name=name, version=version, properties={})
        properties = {**places, **conf.broker_conf(spec, choose_port(BROKER), self._namesrv)}
        path = self._folder / f"{name}.conf"
        path.write_text(conf.properties_text(properties), encoding="utf-8")
        return str(path)


@contextmanager
def broker_container(version: str, namesrv: str, folder: Path) -> Iterator[Container]:
    """Start a container of *version* for brokers that register at *namesrv*."""
    home, port = prepare_home(folder / "container"), choose_port()
    file = home / "conf" / "container.conf"
    file.write_text(
        conf.properties_text({"listenPort": str(port), "namesrvAddr": namesrv}), encoding="utf-8"
    )
    *options, classes = class_options(fetch_jars(version), UNSECURED.java_options(), home)
    places = f"{container_jar(version)}:{classes}"
    process = subprocess.Popen(
        ["java", *BROKER_MEMORY, *options, places, MAIN, "-c", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    try:
        assert process.stdout is not None
        printed = ""
        while "boot success" not in printed:
            line = process.stdout.readline()
            assert line, printed
            printed += line
        yield Container(f"127.0.0.1:{port}", namesrv, folder)
    finally:
        process.kill()
        process.communicate()


def container_jar(version: str) -> Path:
    """Return the jar of containers, which servers do not need; the first call downloads it."""
    jar = cache_folder() / "containers" / f"rocketmq-container-{version}.jar"
    if not jar.is_file():
        jar.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent) as part:
            artifact = f"-Dartifact=org.apache.rocketmq:rocketmq-container:{version}"
            subprocess.run(
                ["mvn", "-q", "-B", COPY, artifact, f"-DoutputDirectory={part}"],
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=DOWNLOAD_SECONDS,
            )
            os.replace(Path(part, jar.name), jar)
    return jar
