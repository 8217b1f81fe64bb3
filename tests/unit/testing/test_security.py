"""Access control and TLS of test servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.testing import Account, Cluster, ClusterError, NotSupportedError, ServerTLS
from rocketmq_aio.testing.backends import open_backend
from rocketmq_aio.testing.jvm import prepare_home
from rocketmq_aio.testing.security import Security
from tests.unit.testing.answering import answering

ADMIN = Account(access_key="administrator", secret_key="canary-9f3a", admin=True)
SHOP = Account(
    access_key="shop-account",
    secret_key="canary-77b1",
    topics={"orders": "PUB|SUB|GET"},
    groups={"billing": "SUB"},
)
OPEN = Security()
BOTH = Security(accounts=(ADMIN, SHOP))
PEM = Path(__file__).parents[2] / "fakes" / "certificates" / "localhost.pem"
TLS = ServerTLS(certificate=PEM, key=PEM, authority=PEM)


def test_a_cluster_without_acl_gets_no_security_settings() -> None:
    assert OPEN.broker_properties("5.5.0") == {}
    assert OPEN.files("4.9.7") == {}
    assert OPEN.java_options() == ["-Dtls.server.mode=disabled"]


def test_acl_requires_an_admin_account() -> None:
    with pytest.raises(ClusterError, match="make it an admin"):
        Cluster.start("5.5.0", accounts=[SHOP])


@pytest.mark.parametrize("backend", ["containers", "external"])
def test_external_servers_and_containers_support_no_security(backend: str) -> None:
    with pytest.raises(ClusterError, match="need the backend 'embedded' or 'jvm'"):
        open_backend(backend, "5.5.0", BOTH)


def test_a_4_9_broker_reads_its_accounts_from_a_file(tmp_path: Path) -> None:
    home = prepare_home(tmp_path, BOTH.files("4.9.7"))

    assert BOTH.broker_properties("4.9.7") == {"aclEnable": "true"}
    reported = json.loads((home / "conf" / "plain_acl.yml").read_text())
    assert [each["admin"] for each in reported["accounts"]] == [True, False]
    assert reported["accounts"][1]["topicPerms"] == ["orders=PUB|SUB"]
    assert reported["accounts"][1]["groupPerms"] == ["billing=SUB"]
    assert "administrator" in (home / "conf" / "tools.yml").read_text()


def test_the_admin_tool_gets_keys_that_look_like_yaml() -> None:
    account = Account(access_key="01234567", secret_key="key: #1", admin=True)
    text = Security(accounts=(account,)).files("5.5.0")["tools.yml"]

    assert json.loads(text) == {"accessKey": "01234567", "secretKey": "key: #1"}


def test_a_5_x_broker_gets_its_first_account_from_its_settings() -> None:
    properties = BOTH.broker_properties("5.5.0")

    assert properties["authenticationEnabled"] == properties["authorizationEnabled"] == "true"
    assert json.loads(properties["initAuthenticationUser"])["username"] == "administrator"
    assert set(BOTH.files("5.5.0")) == {"tools.yml"}


def test_a_5_x_broker_gets_other_accounts_by_requests() -> None:
    answers: dict[int, Response] = {
        RequestCode.AUTH_CREATE_USER: Response(),
        RequestCode.AUTH_CREATE_ACL: Response(),
    }
    with answering(answers) as server:
        BOTH.create_accounts("4.9.7", server.address)
        BOTH.create_accounts("5.5.0", server.address)

    user, acl = server.asked
    assert user.fields["AccessKey"] == "administrator"
    assert json.loads(user.body)["userType"] == "Normal"
    [policy] = json.loads(acl.body)["policies"]
    assert [(each["resource"], each["actions"]) for each in policy["entries"]] == [
        ("Topic:orders", ["Pub", "Sub", "Get"]),
        ("Group:billing", ["Sub"]),
    ]


def test_servers_close_plain_connections_unless_permissive() -> None:
    mutual = ServerTLS(
        certificate=TLS.certificate,
        key=TLS.key,
        authority=TLS.authority,
        client_authority=PEM,
        plain=True,
    )

    assert "-Dtls.server.mode=enforcing" in TLS.java_options()
    assert not any("need.client.auth" in each for each in TLS.java_options())
    assert "-Dtls.server.mode=permissive" in mutual.java_options()
    assert "-Dtls.server.need.client.auth=require" in mutual.java_options()
    assert f"-Dtls.server.trustCertPath={PEM}" in mutual.java_options()


def test_secrets_are_not_shown() -> None:
    assert "canary" not in repr(BOTH) + repr(ADMIN) + str(SHOP.credentials)


@pytest.mark.parametrize("rights", ["READ", "", "PUB|", "pub"])
def test_an_unknown_right_raises_before_any_server_starts(rights: str) -> None:
    with pytest.raises(ClusterError, match=r"account app: orders=.*PUB, SUB, GET"):
        Account(access_key="app", secret_key="secret-key", topics={"orders": rights})


@pytest.mark.parametrize("missing", ["certificate", "key", "authority", "client_authority"])
def test_a_missing_file_raises_before_any_server_starts(missing: str) -> None:
    files: dict[str, Any] = {"certificate": PEM, "key": PEM, "authority": PEM}
    files[missing] = "not-here.pem"

    with pytest.raises(ClusterError, match=rf"^{missing}='not-here.pem': there is no such file"):
        ServerTLS(**files)


def test_relative_paths_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PEM.parent)
    relative = Path(PEM.name)
    tls = ServerTLS(certificate=relative, key=relative, authority=relative)

    assert f"-Dtls.server.certPath={PEM}" in tls.java_options()


def test_a_broker_with_accounts_keeps_its_access_control() -> None:
    Security().check_upgrade("4.9.7", "5.5.0")
    BOTH.check_upgrade("5.1.4", "5.5.0")

    with pytest.raises(NotSupportedError, match=r"cannot go from 4\.9\.7 to 5\.5\.0"):
        BOTH.check_upgrade("4.9.7", "5.5.0")
