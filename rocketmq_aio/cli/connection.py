"""Connection options of every command: addresses, credentials, TLS and namespace."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketmq_aio.cli.arguments import option, options
from rocketmq_aio.cli.contexts import Context, complete_contexts, find_context
from rocketmq_aio.cli.output import FormatArguments, print_note
from rocketmq_aio.cli.stop_flag import interruptible
from rocketmq_aio.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from rocketmq_aio.admin.client import AdminClient
    from rocketmq_aio.config.client import ClientConfig, Credentials
    from rocketmq_aio.config.producer import ProducerConfig
    from rocketmq_aio.spark.options.source_options import Connection

_option = partial(option, panel="Connection")
PAIR_LINE: Final = re.compile(r"\s*([A-Za-z]+)\s*[=:]\s*(\S+)\s*")
SECRETS: Final = {name.lower(): name for name in ("accessKey", "secretKey", "securityToken")}
FILE_FORM: Final = "expected lines accessKey=..., secretKey=... and optionally securityToken=..."
ACCOUNT: Final = ("ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_SECURITY_TOKEN")
READER_GROUP: Final = "TOOLS_CONSUMER"  # RocketMQ's own tools read as this group
NO_NAME_SERVER: Final = (
    "is not given: set it to host:port, set ROCKETMQ_NAMESRV, or choose a context with --context"
)
NO_SECRET: Final = "its secret key is not known: set ROCKETMQ_SECRET_KEY, or use --credentials-file"


@options
class ServerArguments:
    """Addresses and accounts; secrets come from a file, the environment or a prompt only.

    The environment is that of `ClientConfig.from_env`.  A context overrides it, and options
    override both.  The current context is used where nothing else names a name server.
    """

    name_server: str | None = _option(
        "host:port, several joined by ';'; default: ROCKETMQ_NAMESRV, NAMESRV_ADDR.",
        *("--namesrv", "--name-server", "-n"),
    )
    context: str | None = _option(
        "Context of the connection, see `rmq context`; default: the current one.",
        complete=complete_contexts,
    )
    credentials_file: Path | None = _option(
        "File with accessKey=, secretKey=, securityToken= lines; default: ROCKETMQ_ACCESS_KEY, "
        "ROCKETMQ_SECRET_KEY, ROCKETMQ_SECURITY_TOKEN."
    )
    access_key: str | None = _option(
        "Account; its secret key is that of ROCKETMQ_SECRET_KEY, or prompted for."
    )
    tls: bool = _option("Use TLS.", default=False)
    tls_ca_file: str | None = _option("CA certificates to trust.")
    tls_cert_file: str | None = _option("Client certificate.")
    tls_key_file: str | None = _option("Key of the client certificate.")
    namespace: str | None = _option("Namespace of topics and groups.")

    def merged(self, environ: Mapping[str, str]) -> Context:
        """Return the options, with those that are not given from the context or *environ*."""
        names = set(Context.__struct_fields__) & vars(self).keys()
        for name in ("name_server", "context", *sorted(names)):
            if getattr(self, name) == "":  # such as a variable of the shell that is not set
                raise ConfigError(name, "", "is empty: give a value, or leave the option out")
        given = {name: getattr(self, name) or None for name in names}
        if self.credentials_file is not None:
            given["credentials_file"] = str(self.credentials_file)
        elif self.access_key is not None:
            given["credentials_file"] = ""  # not that of the context
        found = environ.get("ROCKETMQ_NAMESRV") or environ.get("NAMESRV_ADDR")
        is_wanted = not (self.name_server or found)
        context = find_context(self.context, wanted=is_wanted, environ=environ)
        given["namesrv"] = self.name_server or context.namesrv or found
        return context.updated(given)


@options
class ClientArguments(ServerArguments):
    """Connection options of commands that are clients themselves."""

    timeout: float | None = _option("Seconds per request; default: 3.", min=0.1)

    def config(
        self, environ: Mapping[str, str] = os.environ, *, may_prompt: bool = True
    ) -> ClientConfig:
        """Return the settings of the options, the context and *environ*.

        :raises ConfigError: one of them is invalid, or no name server is given
        """
        from rocketmq_aio.config.client import ClientConfig

        chosen = self.merged(environ)
        given: dict[str, Any] = {"namesrv": chosen.namesrv, "namespace": chosen.namespace}
        given["request_timeout_seconds"] = chosen.timeout
        given = {name: each for name, each in given.items() if each not in (None, "")}
        if chosen.tls or chosen.tls_ca_file or chosen.tls_cert_file or chosen.tls_key_file:
            given["tls"] = _tls(chosen)
        if account := _credentials(chosen, environ, may_prompt):
            given["credentials"] = account
            environ = {k: each for k, each in environ.items() if k not in ACCOUNT}
        config = ClientConfig.from_env(environ, **given)
        if config.namesrv is None:
            raise ConfigError("namesrv", None, NO_NAME_SERVER)
        return config

    def admin(self) -> AdminClient:
        """Return a client for administration, to be used by ``async with``."""
        from rocketmq_aio.admin.client import AdminClient

        return AdminClient(client=self.config())


def send_settings(client: ClientConfig) -> ProducerConfig:
    """Return the settings of a producer whose sends have the time of a request."""
    from rocketmq_aio.config.producer import ProducerConfig

    return ProducerConfig(send_timeout_seconds=client.request_timeout_seconds)


@options
class ReadArguments(FormatArguments, ClientArguments):
    """Options of commands that connect and print a result."""


@options
class ConnectionArguments(ServerArguments):
    """Connection options of pipelines, whose clients run in processes of Spark, too."""

    name_server: str | None = _option(
        "host:port, several joined by ';'; default: ROCKETMQ_NAMESRV, NAMESRV_ADDR.",
        *("--name-server", "--namesrv", "-n"),
    )
    group: str = _option("Consumer group to read as.", "--group", "-g", default="rocketmq-spark")

    def connection(self, environ: Mapping[str, str] = os.environ) -> Connection:
        """Return the connection of the options and *environ*; raise `ConfigError` if invalid."""
        from rocketmq_aio.spark.options.source_options import write_options

        chosen = self.merged(environ)
        if not chosen.namesrv:
            raise ConfigError("nameServer", None, NO_NAME_SERVER)
        given = {
            "nameServer": chosen.namesrv,
            "group": self.group,
            "tls": "true" if chosen.tls else None,
            "tlsCaFile": chosen.tls_ca_file,
            "tlsCertFile": chosen.tls_cert_file,
            "tlsKeyFile": chosen.tls_key_file,
            "namespace": chosen.namespace or environ.get("ROCKETMQ_NAMESPACE"),
        }
        if chosen.credentials_file:
            given |= read_credentials(Path(chosen.credentials_file))
        elif chosen.access_key and (account := _credentials(chosen, environ, may_prompt=True)):
            given |= {"accessKey": account.access_key, "secretKey": account.secret_key}
            given["securityToken"] = account.security_token
        texts = {name: text for name, text in given.items() if text is not None}
        return write_options(texts, streaming=False).connection


def _credentials(
    chosen: Context, environ: Mapping[str, str], may_prompt: bool
) -> Credentials | None:
    """Return the account; None: that of the environment, if any."""
    from rocketmq_aio.config.client import Credentials

    if chosen.credentials_file:
        found = read_credentials(Path(chosen.credentials_file))
        return Credentials(
            access_key=found["accessKey"],
            secret_key=found["secretKey"],
            security_token=found.get("securityToken"),
        )
    if not chosen.access_key:
        return None
    secret = environ.get("ROCKETMQ_SECRET_KEY")
    token = environ.get("ROCKETMQ_SECURITY_TOKEN") or None
    if environ.get("ROCKETMQ_ACCESS_KEY", chosen.access_key) != chosen.access_key:
        secret, token = None, None  # of another account
    if not secret and may_prompt and sys.stdin.isatty():
        with interruptible():
            secret = getpass.getpass(f"Secret key of {chosen.access_key}: ")
    if not secret:
        raise ConfigError("access_key", chosen.access_key, NO_SECRET)
    return Credentials(access_key=chosen.access_key, secret_key=secret, security_token=token)


def _tls(chosen: Context) -> ssl.SSLContext | bool:
    if chosen.tls_key_file and not chosen.tls_cert_file:
        raise ConfigError("tls_key_file", chosen.tls_key_file, "needs --tls-cert-file")
    if not chosen.tls_ca_file and not chosen.tls_cert_file:
        return True
    from rocketmq_aio.remoting.dial import tls_context

    try:
        context = tls_context(chosen.tls_ca_file)
        if chosen.tls_cert_file:
            context.load_cert_chain(chosen.tls_cert_file, chosen.tls_key_file)
    except OSError as error:  # includes SSLError
        files = filter(None, (chosen.tls_ca_file, chosen.tls_cert_file, chosen.tls_key_file))
        raise ConfigError("tls files", ", ".join(files), str(error)) from error
    return context


def read_credentials(file: Path) -> dict[str, str]:
    """Return the credentials in *file*: JSON, or a line for each; errors do not contain its text.

    :raises ConfigError: the file cannot be read, or has another form
    """
    try:
        if os.name == "posix" and file.stat().st_mode & 0o077:
            print_note(f"other users may read {file}: chmod 600 it")
        text = file.read_text(encoding="utf-8")
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
