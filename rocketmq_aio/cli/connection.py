"""Connection options of every command: addresses, credentials, TLS and namespace."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from rocketmq_aio.cli.arguments import option, options
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.spark.options.source_options import Connection, write_options

_option = partial(option, rich_help_panel="Connection")
PAIR_LINE: Final = re.compile(r"\s*([A-Za-z]+)\s*[=:]\s*(\S+)\s*")
SECRETS: Final = {name.lower(): name for name in ("accessKey", "secretKey", "securityToken")}
FILE_FORM: Final = "expected lines accessKey=..., secretKey=... and optionally securityToken=..."


@options
class ConnectionArguments:
    """Connection options; secrets come from a file or the environment, never from options."""

    name_server: str | None = _option(
        "host:port, several joined by ';'; default: ROCKETMQ_NAMESRV, NAMESRV_ADDR.",
        *("--name-server", "-n"),
    )
    group: str = _option("Consumer group to read as.", "--group", "-g", default=Connection.group)
    credentials_file: Path | None = _option(
        "File with accessKey=, secretKey=, securityToken= lines; default: ROCKETMQ_ACCESS_KEY, "
        "ROCKETMQ_SECRET_KEY, ROCKETMQ_SECURITY_TOKEN."
    )
    tls: bool = _option("Use TLS.", default=False)
    tls_ca_file: str | None = _option("CA certificates to trust.")
    tls_cert_file: str | None = _option("Client certificate.")
    tls_key_file: str | None = _option("Key of the client certificate.")
    namespace: str | None = _option("Namespace of topics and groups.")

    def connection(self, environ: Mapping[str, str] = os.environ) -> Connection:
        """Return the connection of the options and *environ*; raise `ConfigError` if invalid."""
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
        texts = {name: text for name, text in given.items() if text is not None}
        return write_options(texts, streaming=False).connection


def read_credentials(file: Path) -> dict[str, str]:
    """Return the credentials in *file*: JSON, or a line for each; errors do not contain its text.

    :raises ConfigError: the file cannot be read, or has another form
    """
    try:
        text = file.read_text()
    except (OSError, UnicodeError) as error:
        reason = f"cannot be read ({type(error).__name__}): check path and permissions"
        raise ConfigError("credentials", str(file), reason) from None
    pairs = _pairs(text)
    found = {SECRETS[name.lower()]: value for name, value in pairs if name.lower() in SECRETS}
    if len(found) != len(pairs) or not {"accessKey", "secretKey"} <= found.keys():
        raise ConfigError("credentials", str(file), FILE_FORM)
    return found


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return the names and values in *text*; none if it has another form."""
    if text.lstrip().startswith("{"):
        try:
            return [(str(name), str(value)) for name, value in json.loads(text).items()]
        except ValueError:
            return []
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    matches = [match for line in lines if (match := PAIR_LINE.fullmatch(line)) is not None]
    return [(match[1], match[2]) for match in matches] if len(matches) == len(lines) else []
