"""Access control: users and policies of ACL 2.0 (5.3), accounts of ACL 1.0 (4.9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Literal, TypeVar, Unpack

from rocketmq_aio.admin.server_results import (
    AccountVersion,
    Policy,
    PolicyEntry,
    SubjectPolicies,
    User,
)
from rocketmq_aio.admin.servers import (
    Masters,
    Servers,
    Where,
    before_change,
    failure,
    not_supported,
)
from rocketmq_aio.config.arguments import checked_arguments
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests import operations
from rocketmq_aio.remoting.gather import gather_limited

T = TypeVar("T")
UserType = Literal["Super", "Normal"]
Decision = Literal["Allow", "Deny"]
PolicyType = Literal["Custom", "Default"]

SUBJECT_KIND: Final = "User:"  # the only one of brokers
NO_SUBJECT: Final = "The subject is not exist"  # remark of brokers, with a code of refusals

NO_ACCOUNTS: Final = (
    "access control 1.0 is off there: set aclEnable=true in broker.conf, or create users (5.3)"
)


@checked_arguments
class AclAdmin:
    """Manages who may do what: ``admin.acl``.

    Brokers store users and policies on their own: methods go to all masters, to those of
    *cluster*, or to *brokers*, and return results by broker name.  Users and policies need
    brokers from 5.3.0, accounts need 4.9.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    # --- users ----------------------------------------------------------------------------------

    async def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: UserType = "Normal",
        **where: Unpack[Where],
    ) -> None:
        """Create a user.

        :raises BrokerError: it exists
        """
        user = User(username=username, password=password, user_type=user_type)
        header = operations.CreateUser(username=username)
        await self._servers.send_to(f"creating user {username}", header, user, **where)

    async def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: UserType | None = None,
        enabled: bool | None = None,
        **where: Unpack[Where],
    ) -> None:
        """Change what is given; a user that is not *enabled* is rejected."""
        status = None if enabled is None else "enable" if enabled else "disable"
        if password is user_type is status is None:
            raise ConfigError("password", None, "expected a new password, type or state")
        user = User(username=username, password=password, user_type=user_type, user_status=status)
        header = operations.UpdateUser(username=username)
        await self._servers.send_to(f"changing user {username}", header, user, **where)

    async def delete_user(self, username: str, **where: Unpack[Where]) -> None:
        """Delete a user; its policies stay."""
        header = operations.DeleteUser(username=username)
        await self._servers.send_to(f"deleting user {username}", header, **where)

    async def user(self, username: str, **where: Unpack[Where]) -> dict[str, User]:
        """Return a user, from brokers that have it."""
        masters = await self._servers.masters(**where)
        header, action = operations.GetUser(username=username), f"reading user {username}"
        return await self._servers.read_stored(action, masters, header, User)

    async def list_users(
        self, part: str = "", **where: Unpack[Where]
    ) -> dict[str, tuple[User, ...]]:
        """Return the users whose names contain *part*."""
        header, kind = operations.ListUsers(filter=part or None), tuple[User, ...]
        masters = await self._servers.masters(**where)
        found = await self._servers.read_stored("listing users", masters, header, kind)
        return {name: found.get(name, ()) for name in masters}

    async def copy_users(
        self, source: str, targets: Iterable[str], usernames: Iterable[str] | None = None
    ) -> list[str]:
        """Copy users, all or *usernames*, from broker *source* to brokers *targets*.

        Users that exist there are changed.

        :return: the copied names
        :raises AdminError: some failed; ``done`` and ``failed`` are by ``<name> to <target>``
        :raises ConfigError: the source has no such user
        """
        found = await _of("source", self.list_users(brokers=[source]))
        users = {each.username: each for each in found[source]}
        names = _chosen("usernames", users, usernames)
        to = list(targets)
        existing = await _of("targets", self.list_users(brokers=to))
        held = {target: {each.username for each in some} for target, some in existing.items()}

        async def copy(name: str, target: str) -> None:
            change = operations.UpdateUser if name in held[target] else operations.CreateUser
            action, header = f"copying user {name}", change(username=name)
            await self._servers.send_to(action, header, users[name], brokers=[target])

        await _copy_each("copying users", names, to, copy)
        return names

    # --- policies -------------------------------------------------------------------------------

    async def create_policy(
        self,
        subject: str,
        resources: Iterable[str],
        actions: Iterable[str],
        *,
        decision: Decision = "Allow",
        source_ips: Iterable[str] = (),
        policy_type: PolicyType = "Custom",
        **where: Unpack[Where],
    ) -> None:
        """Allow or deny *actions* on *resources* to a subject; see `PolicyEntry`.

        :param subject: such as ``User:alice``, a user that exists
        :param source_ips: from which it applies; default all
        :raises BrokerError: a value is invalid, or the user does not exist
        """
        info = _policies(subject, resources, actions, decision, source_ips, policy_type)
        header = operations.CreatePolicies(subject=_checked_subject(subject))
        action = f"creating policies of {subject}"
        await self._servers.send_to(action, header, info, **where)

    async def update_policy(
        self,
        subject: str,
        resources: Iterable[str],
        actions: Iterable[str],
        *,
        decision: Decision = "Allow",
        source_ips: Iterable[str] = (),
        policy_type: PolicyType = "Custom",
        **where: Unpack[Where],
    ) -> None:
        """Replace the entries of *resources*; parameters are those of `create_policy`.

        :raises BrokerError: the subject has no policies
        """
        info = _policies(subject, resources, actions, decision, source_ips, policy_type)
        header = operations.UpdatePolicies(subject=_checked_subject(subject))
        action = f"changing policies of {subject}"
        await self._servers.send_to(action, header, info, **where)

    async def delete_policy(
        self,
        subject: str,
        resource: str | None = None,
        *,
        policy_type: PolicyType | None = None,
        **where: Unpack[Where],
    ) -> None:
        """Delete the entry of *resource*, or all policies of a subject."""
        header = operations.DeletePolicies(
            subject=_checked_subject(subject), policy_type=policy_type, resource=resource
        )
        await self._servers.send_to(f"deleting policies of {subject}", header, **where)

    async def policies(self, subject: str, **where: Unpack[Where]) -> dict[str, SubjectPolicies]:
        """Return the policies of a subject, from brokers that have some."""
        header = operations.GetPolicies(subject=_checked_subject(subject))
        masters, kind = await self._servers.masters(**where), SubjectPolicies
        action = f"reading policies of {subject}"
        return await self._servers.read_stored(action, masters, header, kind, NO_SUBJECT)

    async def list_policies(
        self, subject_part: str = "", resource_part: str = "", **where: Unpack[Where]
    ) -> dict[str, tuple[SubjectPolicies, ...]]:
        """Return the policies whose subject and resource contain the given parts."""
        header = operations.ListPolicies(
            subject_filter=subject_part or None, resource_filter=resource_part or None
        )
        masters, kind = await self._servers.masters(**where), tuple[SubjectPolicies, ...]
        found = await self._servers.read_stored("listing policies", masters, header, kind)
        return {name: found.get(name, ()) for name in masters}

    async def copy_policies(
        self, source: str, targets: Iterable[str], subjects: Iterable[str] | None = None
    ) -> list[str]:
        """Copy the policies of all or some *subjects* from broker *source* to brokers *targets*.

        :return: the copied subjects
        :raises AdminError: some failed; ``done`` and ``failed`` are by ``<subject> to <target>``
        :raises ConfigError: the source has no policies of a subject
        """
        found = await _of("source", self.list_policies(brokers=[source]))
        held = {each.subject: each for each in found[source]}
        names = _chosen("subjects", held, subjects)
        to = list(targets)
        existing = await _of("targets", self.list_policies(brokers=to))
        have = {target: {each.subject for each in some} for target, some in existing.items()}

        async def copy(name: str, target: str) -> None:
            is_known = name in have[target]
            change = operations.UpdatePolicies if is_known else operations.CreatePolicies
            action, header = f"copying policies of {name}", change(subject=name)
            await self._servers.send_to(action, header, held[name], brokers=[target])

        await _copy_each("copying policies", names, to, copy)
        return names

    # --- accounts of 4.9 ------------------------------------------------------------------------

    async def put_account(
        self,
        access_key: str,
        secret_key: str,
        *,
        admin: bool = False,
        address: str = "",
        default_topic_permission: str = "DENY",
        default_group_permission: str = "DENY",
        topics: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        **where: Unpack[Where],
    ) -> None:
        """Create or replace an account of ACL 1.0.

        :param address: from which no signature is needed, such as ``192.168.0.*``
        :param topics: permissions by topic: ``PUB``, ``SUB``, ``PUB|SUB`` or ``DENY``
        :param groups: permissions by group
        :raises BrokerError: a key is too short (6 and more characters), or a permission invalid
        """
        header = operations.PutAccount(
            access_key=access_key,
            secret_key=secret_key,
            admin=admin,
            white_remote_address=address,
            default_topic_perm=default_topic_permission,
            default_group_perm=default_group_permission,
            topic_perms=_permissions(topics),
            group_perms=_permissions(groups),
        )
        masters = await self._with_accounts(**where)
        await self._servers.send_each(f"storing account {access_key}", masters, header)

    async def delete_account(self, access_key: str, **where: Unpack[Where]) -> None:
        """Delete an account of ACL 1.0."""
        header = operations.DeleteAccount(access_key=access_key)
        masters = await self._with_accounts(**where)
        await self._servers.send_each(f"deleting account {access_key}", masters, header)

    async def put_open_addresses(
        self, addresses: Iterable[str], *, file: str = "", **where: Unpack[Where]
    ) -> None:
        """Set the addresses from which no account is needed (ACL 1.0).

        :param file: the path of the broker's file of accounts; default its main file
        """
        header = operations.PutWhiteAddresses(
            global_white_addrs=",".join(addresses), acl_file_full_path=file
        )
        masters = await self._with_accounts(**where)
        await self._servers.send_each("storing open addresses", masters, header)

    async def account_versions(self, **where: Unpack[Where]) -> dict[str, AccountVersion]:
        """Return the version of the accounts of each broker (ACL 1.0).

        :raises NotSupportedError: as all methods for accounts, if the broker has none
        """
        masters = await self._with_accounts(**where)
        header, action = operations.GET_ACCOUNT_VERSION, "reading the version of accounts"
        responses = await self._servers.request_each(action, masters, header)
        return {name: read_header(each, AccountVersion) for name, each in responses.items()}

    async def _with_accounts(self, **where: Unpack[Where]) -> Masters:
        """Return the masters that `Servers.masters` does.

        :raises NotSupportedError: access control 1.0 is off: a broker would not respond to a query
            of the version, and fail with a ``NullPointerException`` at changes (4.9.7)
        """
        masters = await self._servers.masters(**where)

        async def check(_: str, address: str) -> None:
            if await self._servers.setting(address, "aclEnable") == "false":
                raise not_supported(address, NO_ACCOUNTS)

        await before_change(self._servers.on_each("reading settings", masters, check))
        return masters


async def _of(setting: str, call: Awaitable[T]) -> T:
    """Return what *call* reads of brokers before a change; its errors name *setting*."""
    try:
        return await before_change(call)
    except ConfigError as error:
        raise ConfigError(setting, error.value, error.reason) from error


async def _copy_each(
    action: str,
    names: Iterable[str],
    targets: Iterable[str],
    copy: Callable[[str, str], Awaitable[None]],
) -> None:
    """Call *copy* for each of *names* and *targets*; errors are by ``<name> to <target>``."""
    copies = {f"{name} to {target}": (name, target) for target in targets for name in names}
    done, failed = await gather_limited(lambda each: copy(*copies[each]), copies, 1)
    if failed:
        raise failure(action, done, failed, of="copies")


def _checked_subject(subject: str) -> str:
    """Return *subject*; brokers respond to one of another kind that their system failed."""
    if not subject.startswith(SUBJECT_KIND) or subject == SUBJECT_KIND:
        raise ConfigError("subject", subject, "expected User:NAME")
    return subject


def _policies(
    subject: str,
    resources: Iterable[str],
    actions: Iterable[str],
    decision: Decision,
    source_ips: Iterable[str],
    policy_type: PolicyType,
) -> SubjectPolicies:
    allowed, ips = tuple(actions), tuple(source_ips)
    entries = [
        PolicyEntry(resource=each, actions=allowed, source_ips=ips, decision=decision)
        for each in resources
    ]
    policy = Policy(policy_type=policy_type, entries=tuple(entries))
    return SubjectPolicies(subject=subject, policies=(policy,))


def _permissions(permissions: Mapping[str, str] | None) -> str | None:
    return ",".join(f"{name}={each}" for name, each in (permissions or {}).items()) or None


def _chosen(setting: str, known: Mapping[str, object], names: Iterable[str] | None) -> list[str]:
    chosen = sorted(known) if names is None else list(names)
    for each in chosen:
        if each not in known:
            raise ConfigError(setting, each, f"the source has {sorted(known)}")
    return chosen
