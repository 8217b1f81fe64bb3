"""``python -m rocketmq_aio``: versions and settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import rocketmq_aio
from rocketmq_aio.__main__ import facts


def test_versions_and_the_compiled_core_are_printed() -> None:
    command = [sys.executable, "-m", "rocketmq_aio"]
    environ = {**os.environ, "ROCKETMQ_SECURITY_TOKEN": "s3cret"}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    printed = ended.stdout
    rows = dict(re.split("  +", line, maxsplit=1) for line in printed.splitlines())

    assert rows["rocketmq-aio"] == rocketmq_aio.__version__
    assert rows["compiled core"] == ("yes" if rocketmq_aio.compiled else "no")
    assert rows["ROCKETMQ_SECURITY_TOKEN"] == "***"
    assert "profile-guided optimization" in printed


def test_words_behind_the_module_are_an_error_that_names_the_command() -> None:
    command = [sys.executable, "-m", "rocketmq_aio", "topic", "list"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert "unexpected topic: the command rmq is python -m rocketmq_aio.cli" in ended.stderr


def test_settings_are_shown_without_secrets() -> None:
    environ = {
        "ROCKETMQ_NAMESRV": "10.0.0.1:9876",
        "ROCKETMQ_ACCESS_KEY": "s3cret",
        "ROCKETMQ_SECRET_KEY": "s3cret",
        "ROCKETMQ_SECURITY_TOKEN": "s3cret",
        "HOME": "/home/me",
    }
    shown = dict(facts(environ))

    assert shown["ROCKETMQ_NAMESRV"] == "10.0.0.1:9876"
    assert shown["ROCKETMQ_SECRET_KEY"] == "***"
    assert "HOME" not in shown
    assert "s3cret" not in shown.values()


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """As ``python -m rocketmq_aio | head -0``: the pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "rocketmq_aio"]
    with open(writing, "wb") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, timeout=60)

    assert (ended.returncode, ended.stderr) == (0, b"")
