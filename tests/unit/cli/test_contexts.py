"""Contexts: the file, and which settings win."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from rocketmq_aio.cli.app import run
from rocketmq_aio.cli.connection import ClientArguments
from rocketmq_aio.cli.contexts import Context, Contexts, load_contexts, save_contexts
from rocketmq_aio.config.client import Credentials
from rocketmq_aio.errors import ConfigError


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ROCKETMQ_NAMESRV", "NAMESRV_ADDR", "RMQ_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RMQ_CONFIG", str(tmp_path / "rmq" / "config.toml"))
    return tmp_path / "rmq" / "config.toml"


def test_every_text_survives_the_file(file: Path) -> None:
    odd = Context(namesrv="a:1;b:2", namespace='q"\\ü\x7f\n', tls=True, timeout=1.5)
    save_contexts(Contexts(current="a.b c", contexts={"a.b c": odd, "empty": Context()}))

    found = load_contexts()

    assert (found.current, found.contexts) == ("a.b c", {"a.b c": odd, "empty": Context()})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_context_is_set_used_shown_and_deleted(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["context", "set", "dev", "-n", "a:1"]) == 0
    assert run(["context", "set", "prod", "-n", "b:1", "--tls", "--access-key", "app"]) == 0
    assert run(["context", "use", "prod"]) == 0
    assert run(["context", "set", "prod", "--namespace", "shop", "--access-key", ""]) == 0
    capfd.readouterr()
    assert run(["context", "show", "-o", "json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert run(["context", "delete", "prod", "--dry-run"]) == 0
    assert load_contexts().current == "prod"
    assert run(["context", "delete", "prod", "--yes"]) == 0

    assert (shown["namesrv"], shown["tls"], shown["namespace"]) == ("b:1", True, "shop")
    assert "access_key" not in shown
    assert load_contexts().current is None
    assert [*load_contexts().contexts] == ["dev"]


def test_options_win_over_the_context_and_the_context_over_the_environment(file: Path) -> None:
    context = Context(namesrv="b:1", namespace="ctx", access_key="app")
    save_contexts(Contexts(current="prod", contexts={"prod": context}))
    own = {"ROCKETMQ_SECRET_KEY": "planted", "RMQ_CONFIG": str(file)}
    environ = {"ROCKETMQ_NAMESRV": "a:1", **own}

    plain = ClientArguments().config({"ROCKETMQ_NAMESRV": "a:1"})
    named = ClientArguments(context="prod").config(environ)
    given = ClientArguments(context="prod", name_server="c:1", namespace="own").config(environ)
    current = ClientArguments().config(own)

    assert (plain.namesrv, plain.namespace, plain.credentials) == ("a:1", None, None)
    assert (named.namesrv, named.namespace, current.namesrv) == ("b:1", "ctx", "b:1")
    assert (given.namesrv, given.namespace) == ("c:1", "own")
    assert isinstance(named.credentials, Credentials)
    assert (named.credentials.access_key, named.credentials.secret_key) == ("app", "planted")


def test_the_secret_of_another_account_is_not_used() -> None:
    environ = {"ROCKETMQ_ACCESS_KEY": "other", "ROCKETMQ_SECRET_KEY": "planted"}

    with pytest.raises(ConfigError, match="access_key='app': its secret key is not known") as error:
        ClientArguments(name_server="a:1", access_key="app").config(environ, may_prompt=False)

    assert "planted" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[contexts.a]\nsecret_key = "planted"', "unknown field"),
        ("planted = [", "TOMLDecodeError"),
        ('[contexts.a]\ntls = "planted"', "tls"),
    ],
)
def test_an_unusable_file_is_rejected_without_its_values(
    file: Path, text: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file.parent.mkdir()
    file.write_text(text)

    assert run(["context", "list"]) == 2

    error = capfd.readouterr().err
    assert reason in error
    assert "planted" not in error


def test_an_unknown_context_names_the_known_ones(capfd: pytest.CaptureFixture[str]) -> None:
    save_contexts(Contexts(contexts={"dev": Context(namesrv="a:1")}))

    assert run(["topic", "list", "--context", "prod"]) == 2

    assert capfd.readouterr().err == (
        "rmq: --context 'prod': there is no such context (known: dev)\n"
    )
