"""Jar downloads with a scripted Maven: once, complete or not at all."""

from __future__ import annotations

import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rocketmq_aio.testing import jars
from rocketmq_aio.testing.errors import ClusterError, UnavailableError

MAVEN = """#!{python}
import pathlib, sys, time
output = pathlib.Path(sys.argv[-1].removeprefix("-DoutputDirectory="))
with open({calls!r}, "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
print("[INFO] Downloaded from central: rocketmq-broker.jar (1.5 MB at 3 MB/s)")
if "{version}" == "0.0.0":
    print("[ERROR] no such artifact")
    sys.exit(1)
output.mkdir()
(output / "rocketmq-broker-{version}.jar").write_text("jar")
"""


class FakeMaven:
    """Scripts named java and mvn, the only programs on the PATH."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = folder / "calls"
        self.put("java", "#!/bin/sh\n")

    def put(self, name: str, text: str) -> None:
        program = self._folder / name
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)

    def serve(self, version: str) -> None:
        script = MAVEN.format(python=sys.executable, calls=str(self._calls), version=version)
        self.put("mvn", script)

    @property
    def calls(self) -> int:
        return len(self._calls.read_text(encoding="utf-8").splitlines())

    @property
    def arguments(self) -> list[str]:
        """Those of the last call."""
        return self._calls.read_text(encoding="utf-8").splitlines()[-1].split()


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMaven:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return FakeMaven(programs)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROCKETMQ_AIO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars"


def test_a_cache_that_cannot_be_written_is_named(
    maven: FakeMaven, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven.serve("9.9.9")
    monkeypatch.setenv("ROCKETMQ_AIO_CACHE", "/dev/null/cache")

    with pytest.raises(UnavailableError, match=r"/dev/null/cache/jars.*set ROCKETMQ_AIO_CACHE"):
        jars.fetch_jars("9.9.9")


def test_missing_programs_are_named_with_their_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UnavailableError) as raised:
        jars.require_programs("java", "mvn")

    assert str(raised.value) == (
        "RocketMQ servers cannot be started because java and mvn cannot be found;"
        " install with: apt-get install openjdk-17-jdk-headless maven"
    )


def test_only_missing_programs_are_named(maven: FakeMaven) -> None:
    with pytest.raises(UnavailableError, match=r"because mvn cannot be found.* install maven$"):
        jars.require_programs("java", "mvn")


@pytest.mark.parametrize("threads", [1, 4])
def test_jars_are_fetched_once(maven: FakeMaven, cache: Path, threads: int) -> None:
    maven.serve("4.9.7")

    with ThreadPoolExecutor(threads) as pool:
        folders = set(pool.map(jars.fetch_jars, ["4.9.7"] * 4))

    assert folders == {cache / "4.9.7"}
    assert maven.calls == 1


def test_cached_jars_need_no_maven(maven: FakeMaven, cache: Path) -> None:
    (cache / "5.5.0").mkdir(parents=True)

    assert jars.fetch_jars("5.5.0") == cache / "5.5.0"


def test_a_failed_download_reports_the_reason_and_leaves_nothing(
    maven: FakeMaven, cache: Path
) -> None:
    maven.serve("0.0.0")

    with pytest.raises(ClusterError, match=r"RocketMQ 0\.0\.0:\n\[ERROR\] no such artifact"):
        jars.fetch_jars("0.0.0")

    assert os.listdir(cache) == ["0.0.0.lock"]


def test_a_download_without_a_broker_is_not_kept(maven: FakeMaven, cache: Path) -> None:
    maven.serve("5.5.0")

    with pytest.raises(ClusterError, match=r"no broker of RocketMQ 5\.5\.1"):
        jars.fetch_jars("5.5.1")

    assert not (cache / "5.5.1").exists()


def test_files_of_a_killed_download_are_removed(maven: FakeMaven, cache: Path) -> None:
    (cache / ".4.9.7-killed" / "lib").mkdir(parents=True)
    maven.serve("4.9.7")

    jars.fetch_jars("4.9.7")

    assert sorted(os.listdir(cache)) == ["4.9.7", "4.9.7.lock"]


def test_the_proxy_is_fetched_for_versions_that_have_one() -> None:
    assert "rocketmq-proxy" in jars.pom("5.5.0")
    assert "rocketmq-proxy" not in jars.pom("4.9.7")
    assert "rocketmq-proxy" not in jars.pom("5.1.4")


def test_progress_of_a_download_is_logged(
    maven: FakeMaven, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jars, "PROGRESS_SECONDS", 0.0)
    maven.serve("5.5.0")
    with caplog.at_level(logging.INFO, "rocketmq_aio.testing"):
        jars.fetch_jars("5.5.0")

    assert "from Maven Central, about 150 jars" in caplog.text
    assert "downloaded 1 jars of RocketMQ 5.5.0" in caplog.text


def test_a_download_over_its_timeout_is_stopped(
    maven: FakeMaven, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "DOWNLOAD_SECONDS", 0.2)
    maven.put("mvn", f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")

    with pytest.raises(ClusterError, match=r"it was ended after 0\.2 s"):
        jars.fetch_jars("5.5.0")


def test_wrong_checksums_are_rejected(maven: FakeMaven, cache: Path) -> None:
    maven.serve("4.9.7")

    jars.fetch_jars("4.9.7")

    assert maven.arguments[:2] == ["-B", "--strict-checksums"]
