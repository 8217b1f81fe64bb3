"""Access control of a broker: 1.0 as on 4.9 brokers, 2.0 as on 5.x."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from rocketmq_aio.embedded.broker.state import ErrorResponse
from rocketmq_aio.embedded.codes import AdminCode
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.faults import names_of
from rocketmq_aio.embedded.handlers import reads
from rocketmq_aio.embedded.server import Version
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import Header
from rocketmq_aio.protocol.requests.admin import BY_ID
from rocketmq_aio.remoting.acl import ACCESS_KEY, SIGNATURE, signature_of

ACL_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
UNSIGNED_UP_TO: Final = 399  # client version whose queries do not sign `BY_ID` (5.x)
ADMIN_CODES_4: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
    }
)
AUTH_CODES: Final = " ".join(code.name for code in RequestCode if code.name.startswith("AUTH_"))

# Codes by the kinds of the resources that they name, and the actions of which one is needed.
Rules = Mapping[tuple[str, str], str]
RULES_5: Final[Rules] = {
    ("Topic", "Pub"): "SEND_MESSAGE_V2 SEND_BATCH_MESSAGE END_TRANSACTION RECALL_MESSAGE",
    ("Group", "Sub"): "CONSUMER_SEND_MSG_BACK UNREGISTER_CLIENT",
    ("Group Topic", "Sub"): """PULL_MESSAGE LITE_PULL_MESSAGE POP_MESSAGE ACK_MESSAGE
        CHANGE_MESSAGE_INVISIBLETIME CONSUME_MESSAGE_DIRECTLY LOCK_BATCH_MQ UNLOCK_BATCH_MQ""",
    ("Topic", "Sub,Get"): "QUERY_MESSAGE",
    ("Group", "Sub,Get"): "GET_CONSUMER_LIST_BY_GROUP",
    ("Group Topic", "Sub,Get"): "QUERY_CONSUMER_OFFSET",
    ("Group Topic", "Sub,Update"): "UPDATE_CONSUMER_OFFSET",
    ("Topic", "Get"): """GET_MAX_OFFSET GET_MIN_OFFSET SEARCH_OFFSET_BY_TIMESTAMP
        GET_EARLIEST_MSG_STORETIME VIEW_MESSAGE_BY_ID GET_TOPIC_CONFIG GET_TOPIC_STATS_INFO
        QUERY_TOPIC_CONSUME_BY_WHO""",
    ("Group", "Get"): """GET_CONSUMER_CONNECTION_LIST GET_CONSUMER_RUNNING_INFO
        QUERY_TOPICS_BY_CONSUMER GET_SUBSCRIPTIONGROUP_CONFIG""",
    ("Group Topic", "Get"): """GET_CONSUME_STATS INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        QUERY_CONSUME_TIME_SPAN QUERY_SUBSCRIPTION_BY_CONSUMER""",
    ("Topic", "Create"): "UPDATE_AND_CREATE_TOPIC",
    ("Topic", "Delete"): "DELETE_TOPIC_IN_BROKER",
    ("Group", "Delete"): "DELETE_SUBSCRIPTIONGROUP",
    ("Group Topic", "Update"): "INVOKE_BROKER_TO_RESET_OFFSET CLONE_GROUP_OFFSET",
    ("Cluster", "Get,Update"): f"""GET_PRODUCER_CONNECTION_LIST GET_ALL_TOPIC_CONFIG
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG UPDATE_AND_CREATE_TOPIC_LIST GET_BROKER_CONSUME_STATS
        GET_ALL_PRODUCER_INFO VIEW_BROKER_STATS_DATA {AUTH_CODES}""",
}
RULES_4: Final[Rules] = {
    ("Topic", "Pub"): "SEND_MESSAGE_V2 SEND_BATCH_MESSAGE",
    ("Topic", "Sub"): "QUERY_MESSAGE",
    ("Group", "Sub"): "CONSUMER_SEND_MSG_BACK UNREGISTER_CLIENT GET_CONSUMER_LIST_BY_GROUP",
    ("Group Topic", "Sub"): "PULL_MESSAGE UPDATE_CONSUMER_OFFSET",
}


class AccountLike(Protocol):
    """An account: `rocketmq_aio.testing.Account`."""

    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def admin(self) -> bool: ...
    @property
    def topics(self) -> Mapping[str, str]: ...
    @property
    def groups(self) -> Mapping[str, str]: ...


class AclConfig(Header, frozen=True):
    """Header of the request for an account of a 4.9 broker."""

    access_key: str
    secret_key: str = ""
    admin: bool = False
    topic_perms: str = ""
    group_perms: str = ""


class OfUser(Header, frozen=True):
    """Header of the requests about users: the name, or the part of names to list."""

    username: str = ""
    filter: str = ""


class OfSubject(Header, frozen=True):
    """Header of the requests about permissions: the user, or the part of names to list."""

    subject: str = ""
    subject_filter: str = ""
    resource: str = ""


class Needed(NamedTuple):
    """A resource of a request, and the actions of which one is needed."""

    kind: str
    name: str
    actions: frozenset[str]


class User:
    """An account with its policies: decision and actions by resource, such as ``Topic:orders``."""

    def __init__(self, name: str, secret: str, *, admin: bool = False) -> None:
        self.name = name
        self.secret = secret
        self.admin = admin
        self.enabled = True
        self.policies: dict[str, tuple[str, frozenset[str]]] = {}

    def allow(self, kind: str, rights: Mapping[str, str]) -> None:
        for name, text in rights.items():
            actions = frozenset(right.strip().capitalize() for right in text.split("|"))
            self.policies[f"{kind}:{name}"] = ("Allow", actions)

    def decision(self, needed: Needed) -> str | None:
        """Return the decision of the most specific policy; None: no policy matches."""
        resource = f"{needed.kind}:{needed.name}"
        for pattern in sorted(self.policies, key=len, reverse=True):
            exact = pattern in (resource, "*")
            if exact or (pattern.endswith("*") and resource.startswith(pattern[:-1])):
                decision, actions = self.policies[pattern]
                if actions & (needed.actions | {"All", "Any"}):
                    return decision
        return None


class AccessControl:
    """Verifies signatures and permissions of requests; without accounts everything is allowed."""

    def __init__(self, version: Version, cluster: str, accounts: Iterable[AccountLike]) -> None:
        self._is_5 = version.is_5
        self._cluster = cluster
        self._rules = _by_code(RULES_5 if version.is_5 else RULES_4)
        self.users: dict[str, User] = {}
        for each in accounts:
            user = User(each.access_key, each.secret_key, admin=each.admin)
            user.allow("Topic", each.topics)
            user.allow("Group", each.groups)
            self.users[each.access_key] = user
        self.enabled = bool(self.users)

    def check(self, command: Command, connection: ServerConnection) -> None:
        """Verify the account of *command* and its permissions.

        :raises ErrorResponse: one of them is missing
        """
        user = self._authenticated(command)
        if user.admin:
            return
        if not self._is_5 and command.code in ADMIN_CODES_4:
            remark = f"Need admin permission for request code={command.code}"
            raise self._error(f"{remark}, but accessKey={user.name} is not")
        for needed in self._needed(command):
            decision = user.decision(needed)
            if decision != "Allow":
                raise self._denied(user, needed, decision, connection)

    # --- requests of administrators -------------------------------------------------------------

    @reads(AclConfig, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, version=4)
    def update_config(self, header: AclConfig) -> None:
        """Create or change an account of a 4.9 broker."""
        before = self.users.get(header.access_key)
        secret = header.secret_key or (before.secret if before else "")
        user = User(header.access_key, secret, admin=header.admin)
        user.policies = dict(before.policies) if before else {}
        for kind, permissions in (("Topic", header.topic_perms), ("Group", header.group_perms)):
            pairs = [text.partition("=") for text in permissions.split(",") if text]
            user.allow(kind, {name.strip(): rights for name, _, rights in pairs})
        self.users[user.name] = user

    @reads(Command, RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER, version=5)
    def put_user(self, command: Command) -> None:
        self._check_enabled()
        body = read_body(command.body, dict)
        name = command.ext_fields().get("username") or body["username"]
        user = self.users.get(name)
        if user is None:
            if command.code == RequestCode.AUTH_UPDATE_USER:
                raise _not_found(f"User:{name}")
            user = self.users[name] = User(name, "")
        user.secret = body.get("password") or user.secret
        user.admin = body.get("userType", "Super" if user.admin else "Normal") == "Super"
        user.enabled = body.get("userStatus", "enable") == "enable"

    @reads(OfUser, RequestCode.AUTH_DELETE_USER, version=5)
    def delete_user(self, header: OfUser) -> None:
        self._check_enabled()
        self.users.pop(header.username, None)

    @reads(OfUser, RequestCode.AUTH_GET_USER, version=5)
    def get_user(self, header: OfUser) -> object:
        self._check_enabled()
        user = self.users.get(header.username)
        return None if user is None else _user_info(user)

    @reads(OfUser, RequestCode.AUTH_LIST_USER, version=5)
    def list_users(self, header: OfUser) -> object:
        self._check_enabled()
        return [_user_info(user) for user in self.users.values() if header.filter in user.name]

    @reads(Command, RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL, version=5)
    def put_acl(self, command: Command) -> None:
        self._check_enabled()
        body = read_body(command.body, dict)
        user = self._subject(command.ext_fields().get("subject") or body["subject"])
        for policy in body.get("policies") or ():
            for entry in policy.get("entries") or ():
                actions = frozenset(each.capitalize() for each in entry["actions"])
                user.policies[entry["resource"]] = (entry.get("decision", "Allow"), actions)

    @reads(OfSubject, RequestCode.AUTH_DELETE_ACL, version=5)
    def delete_acl(self, header: OfSubject) -> None:
        self._check_enabled()
        user = self._subject(header.subject)
        if header.resource:
            user.policies.pop(header.resource, None)
        else:
            user.policies.clear()

    @reads(OfSubject, RequestCode.AUTH_GET_ACL, version=5)
    def get_acl(self, header: OfSubject) -> object:
        self._check_enabled()
        user = self._subject(header.subject)
        return _acl_info(user) if user.policies else None

    @reads(OfSubject, RequestCode.AUTH_LIST_ACL, version=5)
    def list_acls(self, header: OfSubject) -> object:
        self._check_enabled()
        users = [user for user in self.users.values() if user.policies]
        part = header.subject_filter
        return [_acl_info(user) for user in users if part in f"User:{user.name}"]

    # --- inside ---------------------------------------------------------------------------------

    def _authenticated(self, command: Command) -> User:
        ext = command.ext_fields()
        name = ext.get(ACCESS_KEY)
        if name is None:
            text = "username cannot be null." if self._is_5 else "No accessKey is configured"
            raise self._error(text)
        user = self.users.get(name)
        if user is None:
            text = f"User:{name} is not found." if self._is_5 else f"No acl config for {name}"
            raise self._error(text)
        if not user.enabled:
            raise self._error(f"User:{name} is disabled.")
        left_out = {SIGNATURE}
        if command.code == RequestCode.QUERY_MESSAGE and (
            not self._is_5 or command.version <= UNSIGNED_UP_TO
        ):
            left_out.add(BY_ID)
        signed = {field: text for field, text in ext.items() if field not in left_out}
        expected = signature_of(signed, command.body, user.secret)
        if not hmac.compare_digest(expected.encode(), ext.get(SIGNATURE, "").encode()):
            if self._is_5:
                raise self._error("check signature failed.")
            raise self._error(f"Check signature failed for accessKey={name}")
        return user

    def _needed(self, command: Command) -> Iterator[Needed]:
        """Yield the resources of *command* with the actions that it needs."""
        if command.code == RequestCode.HEART_BEAT:
            for group in read_body(command.body, HeartbeatData).consumer_data_set:
                yield _resource("Group", group.group_name, "Sub")
                for each in group.subscription_data_set:
                    yield _resource("Topic", each.topic, "Sub")
            return
        kinds, actions = self._rules.get(command.code, ("", ""))
        topics, groups = names_of(command)
        ext = command.ext_fields()
        groups -= {ext.get("producerGroup", "")} - {ext.get("consumerGroup", "")}
        names = {"Cluster": {self._cluster}, "Group": groups, "Topic": topics}
        for kind in kinds.split():
            for name in sorted(names[kind] - {""}):
                yield _resource(kind, name, actions)

    def _denied(
        self, user: User, needed: Needed, decision: str | None, connection: ServerConnection
    ) -> ErrorResponse:
        if not self._is_5:
            return self._error(f"No default permission for {needed.kind.lower()}:{needed.name}")
        reason = "no matched policies." if decision is None else "the decision is deny."
        place = f"{needed.kind}:{needed.name} from {connection.client_address[0]}"
        return self._error(f"User:{user.name} has no permission to access {place}, {reason}")

    def _error(self, remark: str) -> ErrorResponse:
        if self._is_5:
            return ErrorResponse(remark, ResponseCode.NO_PERMISSION)
        return ErrorResponse(ACL_EXCEPTION + remark)

    def _subject(self, subject: str) -> User:
        try:
            return self.users[subject.removeprefix("User:")]
        except KeyError:
            raise _not_found(subject) from None

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise ErrorResponse("An system error occurred, please try again later.")


def _by_code(rules: Rules) -> dict[int, tuple[str, str]]:
    codes = {code.name: code for code in (*RequestCode, *AdminCode)}
    return {codes[name]: rule for rule, names in rules.items() for name in names.split()}


def _resource(kind: str, name: str, actions: str) -> Needed:
    """Return a needed resource; the retry topic of a group counts as the group."""
    if name.startswith(RETRY_PREFIX):
        kind, name = "Group", name.removeprefix(RETRY_PREFIX)
        actions = actions.replace("Pub", "Sub")
    return Needed(kind, name, frozenset(actions.split(",")))


def _not_found(subject: str) -> ErrorResponse:
    return ErrorResponse(f"The subject of {subject} is not exist.")


def _user_info(user: User) -> dict[str, Any]:
    return {
        "username": user.name,
        "password": user.secret,
        "userType": "Super" if user.admin else "Normal",
        "userStatus": "enable" if user.enabled else "disable",
    }


def _acl_info(user: User) -> dict[str, Any]:
    entries = [
        {"resource": resource, "actions": sorted(actions), "decision": decision}
        for resource, (decision, actions) in user.policies.items()
    ]
    return {
        "subject": f"User:{user.name}",
        "policies": [{"policyType": "Custom", "entries": entries}],
    }
