"""Access control of a broker: 1.0 as on 4.9 brokers, 2.0 as on 5.x."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple, Protocol, runtime_checkable

from msgspec.structs import asdict, replace

from rocketmq_aio.admin.server_results import Policy, PolicyEntry, SubjectPolicies, User
from rocketmq_aio.embedded.broker.state import ErrorResponse
from rocketmq_aio.embedded.codes import OtherCode
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.faults import names_of
from rocketmq_aio.embedded.handlers import answers, reads
from rocketmq_aio.embedded.server import Version
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests import operations
from rocketmq_aio.protocol.requests.admin import BY_ID
from rocketmq_aio.remoting.acl import ACCESS_KEY, SIGNATURE, signature_of

NO_ACCESS_CONTROL: Final = "An system error occurred, please try again later."  # of real brokers
ACL_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
SUPER: Final = "Super"
ENABLED: Final = "enable"
ADMIN: Final = "Admin"  # instead of the kinds of resources: only administrators may
DENY: Final = "DENY"
RIGHTS_4: Final = frozenset(("PUB", "SUB", "PUB|SUB", "SUB|PUB", DENY))
WRONG_FORMAT: Final = (
    "Parse Resource format error for {}.\n"
    "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
)
WRONG_RIGHT: Final = (
    "Parse resource permission error for {}.\n"
    "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
)
UPDATE_FAILED: Final = 209
DELETE_FAILED: Final = 210
SHORT_KEY: Final = 6  # characters; keys of accounts are longer
KINDS: Final = frozenset("Cluster Group Namespace Topic".split())
ACTIONS: Final = frozenset("All Any Create Delete Get List Pub Sub Update".split())
UNSIGNED_UP_TO: Final = 399  # client version whose queries do not sign `BY_ID` (5.x)
AUTH_CODES: Final = [code for code in RequestCode if code.name.startswith("AUTH_")]

# Codes by the kinds of the resources that they name, and the actions of which one is needed.
Rules = Mapping[tuple[str, str], str]
RULES_5: Final[Rules] = {
    ("Topic", "Pub"): """SEND_MESSAGE SEND_MESSAGE_V2 SEND_BATCH_MESSAGE END_TRANSACTION
        RECALL_MESSAGE""",
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
        QUERY_CONSUME_TIME_SPAN QUERY_SUBSCRIPTION_BY_CONSUMER QUERY_CONSUME_QUEUE""",
    ("Topic", "Create"): "UPDATE_AND_CREATE_TOPIC",
    ("Topic", "Delete"): "DELETE_TOPIC_IN_BROKER",
    ("Group", "Delete"): "DELETE_SUBSCRIPTIONGROUP",
    ("Group Topic", "Update"): "INVOKE_BROKER_TO_RESET_OFFSET CLONE_GROUP_OFFSET",
    ("Cluster", "Get,Update"): f"""GET_PRODUCER_CONNECTION_LIST GET_ALL_TOPIC_CONFIG
        GET_ALL_SUBSCRIPTIONGROUP_CONFIG UPDATE_AND_CREATE_TOPIC_LIST GET_BROKER_CONSUME_STATS
        GET_ALL_PRODUCER_INFO VIEW_BROKER_STATS_DATA
        {" ".join(code.name for code in AUTH_CODES)}""",
}
RULES_4: Final[Rules] = {
    ("Topic", "Pub"): "SEND_MESSAGE SEND_MESSAGE_V2 SEND_BATCH_MESSAGE",
    ("Topic", "Sub"): "QUERY_MESSAGE",
    ("Group", "Sub"): "CONSUMER_SEND_MSG_BACK UNREGISTER_CLIENT GET_CONSUMER_LIST_BY_GROUP",
    ("Group Topic", "Sub"): "PULL_MESSAGE UPDATE_CONSUMER_OFFSET",
    (ADMIN, ""): """UPDATE_AND_CREATE_TOPIC DELETE_TOPIC_IN_BROKER UPDATE_BROKER_CONFIG
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP DELETE_SUBSCRIPTIONGROUP
        UPDATE_AND_CREATE_ACL_CONFIG DELETE_ACL_CONFIG""",
}


@runtime_checkable
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


class Needed(NamedTuple):
    """A resource of a request, and the actions of which one is needed."""

    kind: str
    name: str
    actions: frozenset[str]


class Account:
    """A user, and the entries of its policies by resource, such as ``Topic:orders``."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.entries: dict[str, PolicyEntry] = {}

    def allow(self, kind: str, rights: Mapping[str, str]) -> None:
        for name, text in rights.items():
            actions = tuple(right.strip().capitalize() for right in text.split("|"))
            resource = f"{kind}:{name}"
            self.entries[resource] = PolicyEntry(resource=resource, actions=actions)

    def decision(self, needed: Needed, client: str, *, is_5: bool) -> str | None:
        """Return the decision for the IP address *client*, if any: that of the most specific entry.

        In 5.x only entries for the needed actions count; in 4.9 any entry hides the default.
        """
        resource = f"{needed.kind}:{needed.name}"
        patterns = [each for each in self.entries if _covers(each, resource)]
        patterns.sort(key=lambda each: (each.endswith("*"), -len(each)))
        for pattern in patterns if is_5 else patterns[:1]:
            entry = self.entries[pattern]
            networks = [ip_network(each, strict=False) for each in entry.source_ips]
            from_here = not networks or any(ip_address(client) in each for each in networks)
            if from_here and not (needed.actions | {"All", "Any"}).isdisjoint(entry.actions):
                return entry.decision
        return None

    def policies(self, part: str = "") -> SubjectPolicies | None:
        """Return the policies of resources that contain *part*; None: there are none."""
        entries = tuple(each for each in self.entries.values() if part in each.resource)
        policies = (Policy(entries=entries),)
        subject = f"User:{self.user.username}"
        return SubjectPolicies(subject=subject, policies=policies) if entries else None


class NoAccessControl:
    """Answers administrators of access control at a broker without it."""

    @answers(*AUTH_CODES, version=5)
    def refuse(self) -> object:
        raise ErrorResponse(f"{NO_ACCESS_CONTROL} (this embedded broker has no accounts)")


class AccessControl:
    """Verifies signatures and permissions of requests; without accounts everything is allowed."""

    def __init__(self, version: Version, cluster: str, accounts: Iterable[AccountLike]) -> None:
        self._is_5 = version.is_5
        self._cluster = cluster
        self._rules = _by_code(RULES_5 if version.is_5 else RULES_4)
        self.accounts: dict[str, Account] = {}
        for each in accounts:
            account = self._put(each.access_key, each.secret_key, admin=each.admin)
            account.allow("Topic", each.topics)
            account.allow("Group", each.groups)
        self.enabled = bool(self.accounts)

    def check(self, command: Command, connection: ServerConnection) -> None:
        """Verify the account of *command* and its permissions; ErrorResponse if one is missing."""
        account = self._authenticated(command)
        if account.user.user_type == SUPER:
            return
        kinds, actions = self._rules.get(command.code, ("", ""))
        if kinds == ADMIN:
            remark = f"Need admin permission for request code={command.code}"
            raise self._error(f"{remark}, but accessKey={account.user.username} is not")
        client = connection.client_address[0]
        for needed in self._needed(command, kinds, actions):
            decision = account.decision(needed, client, is_5=self._is_5)
            if decision != "Allow":
                reason = "no matched policies." if decision is None else "the decision is deny."
                what = f"{needed.kind}:{needed.name} from {client}"
                raise self._error(
                    f"User:{account.user.username} has no permission to access {what}, {reason}",
                    f"No default permission for {needed.kind.lower()}:{needed.name}",
                )

    # --- requests of administrators -------------------------------------------------------------

    @reads(operations.PutAccount, version=4)
    def put_account(self, header: operations.PutAccount) -> None:
        """Create or replace an account of a 4.9 broker."""
        before = self.accounts.get(header.access_key)
        secret = header.secret_key or (before.user.password if before else None)
        if min(len(header.access_key), len(secret or "")) <= SHORT_KEY:
            remark = f"The accessKey={header.access_key} and its secretKey cannot be null"
            raise ErrorResponse(f"{remark} and length should longer than 6", UPDATE_FAILED)
        if header.white_remote_address:
            remark = "an embedded broker has no addresses from which no signature is needed"
            raise ErrorResponse(remark, UPDATE_FAILED)
        topics, groups = _permissions(header.topic_perms), _permissions(header.group_perms)
        account = self._put(header.access_key, secret, admin=bool(header.admin))
        account.entries.clear()
        account.allow("Topic", {"*": header.default_topic_perm or DENY} | topics)
        account.allow("Group", {"*": header.default_group_perm or DENY} | groups)

    @reads(operations.DeleteAccount, version=4)
    def delete_account(self, header: operations.DeleteAccount) -> None:
        if self.accounts.pop(header.access_key, None) is None:
            who = f"The accesskey[{header.access_key}] corresponding to accessConfig"
            raise ErrorResponse(f"{who} has been deleted failed.", DELETE_FAILED)

    @reads(User, RequestCode.AUTH_CREATE_USER, version=5)
    def create_user(self, user: User) -> None:
        if user.username in self.accounts:
            raise self._error("The user is existed")
        self._put(user.username)
        self.update_user(user)

    @reads(User, RequestCode.AUTH_UPDATE_USER, version=5)
    def update_user(self, user: User) -> None:
        account = self.accounts.get(user.username)
        if account is None:
            raise self._error("The user is not exist")
        given = {name: value for name, value in asdict(user).items() if value}
        account.user = replace(account.user, **given)

    @reads(operations.DeleteUser, version=5)
    def delete_user(self, header: operations.DeleteUser) -> None:
        self.accounts.pop(header.username or "", None)

    @reads(operations.GetUser, version=5)
    def get_user(self, header: operations.GetUser) -> object:
        account = self.accounts.get(header.username or "")
        return None if account is None else account.user

    @reads(operations.ListUsers, version=5)
    def list_users(self, header: operations.ListUsers) -> object:
        users = [account.user for account in self.accounts.values()]
        return [user for user in users if (header.filter or "") in user.username]

    @reads(SubjectPolicies, RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL, version=5)
    def put_policies(self, body: SubjectPolicies) -> None:
        account = self._subject(body.subject, f"The subject of {body.subject} is not exist.")
        changed = {}
        for entry in (each for policy in body.policies for each in policy.entries):
            named = [each.capitalize() for each in entry.actions]
            known = replace(
                entry,
                resource=_resource_key(entry.resource),
                actions=tuple(each for each in named if each in ACTIONS),  # ignores others
                decision=entry.decision.capitalize(),
            )
            if (fault := _fault(known)) is not None:
                raise self._error(fault)
            changed[known.resource] = known
        account.entries |= changed

    @reads(operations.DeletePolicies, version=5)
    def delete_policies(self, header: operations.DeletePolicies) -> None:
        entries = self._subject(header.subject).entries
        if not entries:
            raise self._error("The acl is not exist.")
        if header.resource:
            entries.pop(_resource_key(header.resource), None)
        else:
            entries.clear()

    @reads(operations.GetPolicies, version=5)
    def get_policies(self, header: operations.GetPolicies) -> object:
        return self._subject(header.subject).policies()

    @reads(operations.ListPolicies, version=5)
    def list_policies(self, header: operations.ListPolicies) -> object:
        part = header.subject_filter or ""
        chosen = [each for name, each in self.accounts.items() if part in f"User:{name}"]
        found = [account.policies(header.resource_filter or "") for account in chosen]
        return [policies for policies in found if policies is not None]

    # --- inside ---------------------------------------------------------------------------------

    def _put(self, name: str, secret: str | None = None, *, admin: bool = False) -> Account:
        """Create or replace a user; its policies stay."""
        kind = SUPER if admin else "Normal"
        user = User(username=name, password=secret or "", user_type=kind, user_status=ENABLED)
        account = self.accounts.setdefault(name, Account(user))
        account.user = user
        return account

    def _authenticated(self, command: Command) -> Account:
        ext = command.ext_fields()
        name = ext.get(ACCESS_KEY)
        if name is None:
            raise self._error("username cannot be null.", "No accessKey is configured")
        account = self.accounts.get(name)
        if account is None:
            raise self._error(f"User:{name} is not found.", f"No acl config for {name}")
        if account.user.user_status != ENABLED:
            raise self._error(f"User:{name} is disabled.")
        left_out = {SIGNATURE}
        if command.code == RequestCode.QUERY_MESSAGE and (
            not self._is_5 or command.version <= UNSIGNED_UP_TO
        ):
            left_out.add(BY_ID)
        signed = {field: text for field, text in ext.items() if field not in left_out}
        expected = signature_of(signed, command.body, account.user.password or "")
        if not hmac.compare_digest(expected.encode(), ext.get(SIGNATURE, "").encode()):
            of_4 = f"Check signature failed for accessKey={name}"
            raise self._error("check signature failed.", of_4)
        return account

    def _needed(self, command: Command, kinds: str, actions: str) -> Iterator[Needed]:
        """Yield the resources of *command* with the actions that it needs."""
        if command.code == RequestCode.HEART_BEAT:
            for group in read_body(command.body, HeartbeatData).consumer_data_set:
                yield _resource("Group", group.group_name, "Sub")
                for each in group.subscription_data_set:
                    yield _resource("Topic", each.topic, "Sub")
            return
        topics, groups = names_of(command)
        ext = command.ext_fields()
        groups -= {ext.get("producerGroup", "")} - {ext.get("consumerGroup", "")}
        names = {"Cluster": {self._cluster}, "Group": groups, "Topic": topics}
        for kind in kinds.split():
            for name in sorted(names[kind] - {""}):
                yield _resource(kind, name, actions)

    def _error(self, of_5: str, of_4: str | None = None) -> ErrorResponse:
        """Return a refusal with the remark of the version."""
        if self._is_5:
            return ErrorResponse(of_5, ResponseCode.NO_PERMISSION)
        return ErrorResponse(ACL_EXCEPTION + (of_4 or of_5))

    def _subject(self, subject: str | None, unknown: str = "The subject is not exist.") -> Account:
        kind, _, name = (subject or "").partition(":")
        account = self.accounts.get(name) if kind == "User" else None
        if account is None:
            raise self._error(unknown)
        return account


def _covers(pattern: str, resource: str) -> bool:
    is_prefix = pattern.endswith("*") and resource.startswith(pattern[:-1])
    return is_prefix or pattern == resource


def _resource_key(text: str) -> str:
    """Return a resource as brokers store it; empty if it is of no known kind."""
    kind, _, name = text.partition(":")
    kind = kind.capitalize()
    if text == "*" or kind == "Any":
        return "*"
    return f"{kind}:{name}" if kind in KINDS else ""


def _permissions(text: str | None) -> dict[str, str]:
    """Return the permissions of a 4.9 account by name."""
    found = {}
    for part in filter(None, (text or "").split(",")):
        name, separator, right = part.partition("=")
        if not separator:
            raise ErrorResponse(WRONG_FORMAT.format(part), UPDATE_FAILED)
        if right.strip() not in RIGHTS_4:
            raise ErrorResponse(WRONG_RIGHT.format(part), UPDATE_FAILED)
        found[name.strip()] = right
    return found


def _fault(entry: PolicyEntry) -> str | None:
    """Return the remark to an entry with an invalid value; None: it is valid."""
    if not entry.resource:
        return "The resource is null."
    if not entry.actions:
        return "The actions is empty."
    if "Any" in entry.actions:
        return "The actions can not be Any."
    try:
        [ip_network(each, strict=False) for each in entry.source_ips]
    except ValueError:
        return "The source ip is invalid."
    return None if entry.decision in ("Allow", "Deny") else "The decision is null or illegal."


def _by_code(rules: Rules) -> dict[int, tuple[str, str]]:
    codes = {code.name: code for code in (*RequestCode, *OtherCode)}
    return {codes[name]: rule for rule, names in rules.items() for name in names.split()}


def _resource(kind: str, name: str, actions: str) -> Needed:
    """Return a needed resource; the retry topic of a group counts as the group."""
    if name.startswith(RETRY_PREFIX):
        kind, name = "Group", name.removeprefix(RETRY_PREFIX)
        actions = actions.replace("Pub", "Sub")
    return Needed(kind, name, frozenset(actions.split(",")))
