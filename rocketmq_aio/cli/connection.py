"""Connection options of every command: addresses, credentials, TLS and namespace."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.options.source_options import Connection, write_options

_Option = partial(typer.Option, rich_help_panel="Connection")
PAIR_LINE: Final = re.compile(r"\s*([A-Za-z]+)\s*[=:]\s*(\S+)\s*")
SECRETS: Final = {
    "accesskey": "accessKey",
    "secretkey": "secretKey",
    "securitytoken": "securityToken",
}
FILE_FORM: Final = "expected lines accessKey=..., secretKey=... and optionally securityToken=..."


@dataclass(kw_only=True)
class ConnectionArguments:
    """Connection options; secrets come from a file or the environment, never from options."""

    name_server: Annotated[
        str | None,
        _Option(
            "--name-server",
            "-n",
            help="host:port, several joined by ';'; default: ROCKETMQ_NAMESRV, NAMESRV_ADDR.",
        ),
    ] = None
    group: Annotated[str, _Option("--group", "-g", help="Consumer group to read as.")] = (
        "rocketmq-spark"
    )
    credentials_file: Annotated[
        Path | None,
        _Option(
            help="File with accessKey=, secretKey=, securityToken= lines; default: "
            "ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY, ROCKETMQ_SECURITY_TOKEN.",
        ),
    ] = None
    tls: Annotated[bool, _Option("--tls", help="Use TLS.")] = False
    tls_ca_file: Annotated[str | None, _Option(help="CA certificates to trust.")] = None
    tls_cert_file: Annotated[str | None, _Option(help="Client certificate.")] = None
    tls_key_file: Annotated[str | None, _Option(help="Key of the client certificate.")] = None
    namespace: Annotated[str | None, _Option(help="Namespace of topics and groups.")] = None

    def connection(self, environ: Mapping[str, str] = os.environ) -> Connection:
        """Return the connection of the options and *environ*.

        :raises ConfigError: an option or the file is invalid
        """
        servers = self.name_server or environ.get("ROCKETMQ_NAMESRV") or environ.get("NAMESRV_ADDR")
        given = {
            "nameServer": servers,
            "group": self.group,
            "tls": "true" if self.tls else None,
            "tlsCaFile": self.tls_ca_file,
            "tlsCertFile": self.tls_cert_file,
            "tlsKeyFile": self.tls_key_file,
            "namespace": self.namespace or environ.get("ROCKETMQ_NAMESPACE"),
            **(read_credentials(self.credentials_file) if self.credentials_file else {}),
        }
        if not servers:
            reason = "is not given: set it to host:port, or set ROCKETMQ_NAMESRV"
            raise ConfigError("nameServer", None, reason)
        options = {name: text for name, text in given.items() if text is not None}
        return write_options(options, streaming=False).connection


def read_credentials(file: Path) -> dict[str, str]:
    """Return the credentials in *file*: JSON, or a line for each; errors do not contain its text.

    :raises ConfigError: the file cannot be read, or has another form
    """
    try:
        text = file.read_text()
    except (OSError, UnicodeError) as error:
        reason = f"cannot be read ({type(error).__name__}): check path and permissions"
        raise ConfigError("credentials", str(file), reason) from None
    pairs = _json_pairs(text) if text.lstrip().startswith("{") else _line_pairs(text)
    if pairs is None:
        raise ConfigError("credentials", str(file), FILE_FORM)
    found = {SECRETS[name.lower()]: value for name, value in pairs if name.lower() in SECRETS}
    if len(found) != len(pairs) or not {"accessKey", "secretKey"} <= found.keys():
        raise ConfigError("credentials", str(file), FILE_FORM)
    return found


def _json_pairs(text: str) -> list[tuple[str, str]] | None:
    try:
        return [(str(name), str(value)) for name, value in json.loads(text).items()]
    except ValueError:
        return None


def _line_pairs(text: str) -> list[tuple[str, str]] | None:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pairs = [PAIR_LINE.fullmatch(line) for line in lines]
    found = [(pair[1], pair[2]) for pair in pairs if pair is not None]
    return found if len(found) == len(lines) else None
