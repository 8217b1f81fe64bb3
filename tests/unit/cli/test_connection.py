"""Options of the connection, and files of credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketmq_aio.cli.connection import ConnectionArguments, read_credentials
from rocketmq_aio.errors import ConfigError

GOOD = {"accessKey": "ak", "secretKey": "s=k:1"}


def test_the_environment_sets_the_connection() -> None:
    environ = {"NAMESRV_ADDR": "b:1", "ROCKETMQ_NAMESRV": "a:1", "ROCKETMQ_NAMESPACE": "n"}

    connection = ConnectionArguments().connection(environ)

    assert (connection.name_server, connection.namespace) == ("a:1", "n")
    assert ConnectionArguments(name_server="c:1").connection(environ).name_server == "c:1"


def test_a_missing_name_server_is_reported_with_its_option() -> None:
    with pytest.raises(ConfigError, match="set ROCKETMQ_NAMESRV"):
        ConnectionArguments().connection({})


@pytest.mark.parametrize(
    "text",
    [
        "accessKey=ak\nsecretKey=s=k:1\n",
        "# of production\naccessKey: ak\n\nsecretKey: s=k:1",
        '{"accessKey": "ak", "secretKey": "s=k:1"}',
    ],
)
def test_credentials_are_read_from_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(text)

    assert read_credentials(file) == GOOD
    connection = ConnectionArguments(name_server="a:1", credentials_file=file).connection({})
    assert (connection.access_key, connection.secret_key) == ("ak", "s=k:1")
    assert "s=k:1" not in repr(connection)


@pytest.mark.parametrize(
    "text",
    ["planted", "accessKey=planted", "planted=1\nsecretKey=2", '{"accessKey": "planted"', "[1]"],
)
def test_an_invalid_credentials_file_is_rejected_without_its_text(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "credentials"
    file.write_text(text)

    with pytest.raises(ConfigError) as refused:
        read_credentials(file)

    assert "planted" not in str(refused.value)
    assert "secretKey" in refused.value.reason


def test_a_missing_credentials_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.*FileNotFoundError"):
        read_credentials(tmp_path / "nowhere")
