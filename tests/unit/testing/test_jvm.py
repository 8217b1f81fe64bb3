"""Commands of the JVM backend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketmq_aio.testing.jvm import JVMServer, class_options


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
