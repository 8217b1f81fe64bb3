"""Access control and TLS of test servers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.config.client import Credentials
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import probe
from rocketmq_aio.testing.errors import ClusterError, NotSupportedError

PROVIDERS: Final = "org.apache.rocketmq.auth"
ACTIONS: Final = {"PUB": "Pub", "SUB": "Sub", "GET": "Get"}
WITHOUT_TLS: Final = "-Dtls.server.mode=disabled"


@checked_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account: the listed permissions, or all of them with *admin*.

    4.9 brokers require keys of more than six characters.

    :param topics: by topic ``"PUB"``, ``"SUB"`` or ``"PUB|SUB"``; 5.x brokers also have ``"GET"``,
        required to query where a queue begins and ends
    :param groups: by consumer group ``"SUB"``
    :raises ClusterError: a permission is unknown
    :raises ConfigError: an argument has another type
    """

    access_key: str
    secret_key: str = field(repr=False)
    admin: bool = False
    topics: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, rights in (*self.topics.items(), *self.groups.items()):
            if not ACTIONS.keys() >= {*rights.split("|")}:
                known = ", ".join(ACTIONS)
                reason = f"{name}={rights!r}: expected some of {known}, joined by |"
                raise ClusterError(f"account {self.access_key}: {reason}")

    @property
    def credentials(self) -> Credentials:
        """The credentials for clients of this account."""
        return Credentials(access_key=self.access_key, secret_key=self.secret_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTLS:
    """The certificate of all servers of a cluster, as PEM files.

    The servers use TLS among each other, so the certificate must be valid for clients, too.

    :param key: its private key, in PKCS #8
    :param authority: the certificate of its issuer
    :param client_authority: servers require client certificates signed by this authority
    :param plain: also accept connections without TLS
    :raises ClusterError: a file does not exist
    """

    certificate: Path
    key: Path
    authority: Path
    client_authority: Path | None = None
    plain: bool = False

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "authority", "client_authority"):
            if (given := getattr(self, name)) is None:
                continue
            file = Path(given).resolve()  # servers have another working directory
            if not file.is_file():
                raise ClusterError(f"{name}={str(given)!r}: there is no such file ({file})")
            object.__setattr__(self, name, file)

    def java_options(self) -> list[str]:
        """Return the Java options for servers and the admin tool."""
        settings = {
            "enable": "true",
            "test.mode.enable": "false",
            "server.mode": "permissive" if self.plain else "enforcing",
            "server.certPath": self.certificate,
            "server.keyPath": self.key,
            "client.certPath": self.certificate,
            "client.keyPath": self.key,
            "client.authServer": "true",
            "client.trustCertPath": self.authority,
        }
        if self.client_authority is not None:
            settings |= {
                "server.need.client.auth": "require",
                "server.authClient": "true",
                "server.trustCertPath": self.client_authority,
            }
        return [f"-Dtls.{name}={value}" for name, value in settings.items()]

    def server_context(self) -> ssl.SSLContext:
        """Return the context of the embedded servers.

        :raises NotSupportedError: they should also accept connections without TLS
        """
        if self.plain:
            raise NotSupportedError("embedded servers with TLS accept no plain connections")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if self.client_authority is not None:
            context.load_verify_locations(self.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return a client context that trusts the servers and that they accept."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.check_hostname = False  # brokers do not check host names either
        context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Accounts and TLS of a cluster; the cluster itself uses the first account."""

    accounts: tuple[Account, ...] = ()
    tls: ServerTLS | None = None

    def __post_init__(self) -> None:
        if self.accounts and not self.accounts[0].admin:
            raise ClusterError("the first account is used by the cluster itself: make it an admin")

    def access(self) -> probe.Access:
        """Return the access of the cluster's own requests."""
        return probe.Access(
            self.accounts[0].credentials if self.accounts else None,
            None if self.tls is None else self.tls.client_context(),
        )

    def java_options(self) -> list[str]:
        # By default servers generate a certificate, a third of their start time.
        return [WITHOUT_TLS] if self.tls is None else self.tls.java_options()

    def broker_properties(self, version: str) -> dict[str, str]:
        """Return the properties that enable access control in a broker of *version*."""
        if not self.accounts:
            return {}
        if is_old(version):
            return {"aclEnable": "true"}
        names = {"username": self.accounts[0].access_key, "password": self.accounts[0].secret_key}
        keys = {"accessKey": names["username"], "secretKey": names["password"]}
        properties = {
            "initAuthenticationUser": json.dumps(names),
            "innerClientAuthenticationCredentials": json.dumps(keys),
        }
        for area in ("authentication", "authorization"):
            package, name = f"{PROVIDERS}.{area}.provider", area.capitalize()
            properties |= {
                f"{area}Enabled": "true",
                f"{area}Provider": f"{package}.Default{name}Provider",
                f"{area}MetadataProvider": f"{package}.Local{name}MetadataProvider",
            }
        return properties

    def files(self, version: str) -> dict[str, str]:
        """Return the configuration files of servers and admin tool: text by name."""
        if not self.accounts:
            return {}
        first = self.accounts[0]
        keys = {"accessKey": first.access_key, "secretKey": first.secret_key}
        files = {"tools.yml": json.dumps(keys)}  # valid YAML, whatever the keys contain
        if is_old(version):
            files["plain_acl.yml"] = plain_acl(self.accounts)
        return files

    def check_upgrade(self, version: str, wanted: str) -> None:
        """Check that a server of *version* can be restarted with the version *wanted*.

        :raises NotSupportedError: there are accounts, which 4.9 and 5.x store differently
        """
        if self.accounts and is_old(version) != is_old(wanted):
            raise NotSupportedError(
                f"a broker with accounts cannot go from {version} to {wanted}:"
                " 4.9 reads them from a file, 5.x from its store"
            )

    def create_accounts(self, version: str, broker: str) -> None:
        """Create the accounts at the broker with that address (5.x; 4.9 reads a file)."""
        if is_old(version):
            return
        access = self.access()
        for account in self.accounts[1:]:
            _create(broker, account, access)


def is_old(version: str) -> bool:
    """Return whether *version* has access control 1.0."""
    return version.startswith("4.")


def plain_acl(accounts: Sequence[Account]) -> str:
    """Return the account file of a 4.9 broker: JSON, which is valid YAML."""
    listed = [
        {
            "accessKey": each.access_key,
            "secretKey": each.secret_key,
            "admin": each.admin,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "DENY",
            "topicPerms": [f"{name}={_old(rights)}" for name, rights in each.topics.items()],
            "groupPerms": [f"{name}={rights}" for name, rights in each.groups.items()],
        }
        for each in accounts
    ]
    return json.dumps({"globalWhiteRemoteAddresses": [], "accounts": listed}, indent=1)


def _old(rights: str) -> str:
    """Return the *rights* without GET, which 4.9 brokers do not have."""
    return "|".join(right for right in rights.split("|") if right != "GET")


def _create(broker: str, account: Account, access: probe.Access) -> None:
    user = {
        "username": account.access_key,
        "password": account.secret_key,
        "userType": "Super" if account.admin else "Normal",
        "userStatus": "enable",
    }
    named = {"username": account.access_key}
    probe.ask(broker, RequestCode.AUTH_CREATE_USER, named, json.dumps(user).encode(), access)
    rights = [
        *((f"Topic:{name}", text) for name, text in account.topics.items()),
        *((f"Group:{name}", text) for name, text in account.groups.items()),
    ]
    if rights:
        subject = f"User:{account.access_key}"
        acl = {"subject": subject, "policies": [{"entries": [_entry(*each) for each in rights]}]}
        body = json.dumps(acl).encode()
        probe.ask(broker, RequestCode.AUTH_CREATE_ACL, {"subject": subject}, body, access)


def _entry(resource: str, rights: str) -> dict[str, object]:
    actions = [ACTIONS[right] for right in rights.split("|")]
    return {"resource": resource, "actions": actions, "sourceIps": [], "decision": "Allow"}
