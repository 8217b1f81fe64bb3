"""Commands of the JVM backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketmq_aio.testing.jvm import class_options


def test_java_opt_ext_adds_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = class_options(tmp_path, (), tmp_path)
    monkeypatch.setenv("JAVA_OPT_EXT", "-Xmx1g '-Dname=with space'")
    extended = class_options(tmp_path, (), tmp_path)

    assert extended == [*plain[:-2], "-Xmx1g", "-Dname=with space", *plain[-2:]]
