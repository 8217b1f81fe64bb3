"""Commands of the JVM backend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketmq_aio.testing.errors import ClusterError
from rocketmq_aio.testing.jvm import JVMBackend, JVMServer, class_options, prepare_home


def test_java_opt_ext_adds_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = class_options(tmp_path, (), tmp_path)
    monkeypatch.setenv("JAVA_OPT_EXT", "-Xmx1g '-Dname=with space'")
    extended = class_options(tmp_path, (), tmp_path)

    assert extended == [*plain[:-2], "-Xmx1g", "-Dname=with space", *plain[-2:]]


def test_logs_that_cannot_be_copied_are_left_out(tmp_path: Path) -> None:
    home, saved = tmp_path / "broker-a", tmp_path / "saved"
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "broker.log").write_text("line", encoding="utf-8")
    os.mkfifo(home / "logs" / "pipe")  # raises as a file that disappeared does

    JVMServer(home, "5.5.0", lambda version: ["java"]).save_logs(saved)

    assert [path.name for path in (saved / "broker-a").iterdir()] == ["broker.log"]


def test_java_8_is_named_in_the_output(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "broker-a")
    refuse = 'echo "Unrecognized option: --add-opens=java.base/java.nio=ALL-UNNAMED"; exit 1'
    server = JVMServer(home, "5.5.0", lambda version: ["sh", "-c", refuse])
    server.start()
    assert server._process is not None
    server._process.wait(60)

    assert "Java 17 is needed: apt-get install" in server.log_tail()


def test_servers_are_killed_although_one_of_them_does_not_end(tmp_path: Path) -> None:
    killed = list[str]()

    class Stuck(JVMServer):
        def kill(self) -> None:
            raise ClusterError("it hangs")

    class Fine(JVMServer):
        def kill(self) -> None:
            killed.append(str(self._home))

    backend = JVMBackend.__new__(JVMBackend)
    backend._folder = tmp_path / "cluster"
    backend._folder.mkdir()
    backend._servers = [kind(tmp_path, "5.5.0", lambda _: ["java"]) for kind in (Fine, Stuck, Fine)]
    with pytest.raises(ClusterError, match="it hangs"):
        backend.close()

    assert len(killed) == 2
    assert not backend._folder.exists()
