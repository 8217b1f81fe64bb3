"""AdminClient: the public methods; topics, groups, offsets and messages are parts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Unpack

from rocketmq_aio.admin.group_settings import GroupSettings
from rocketmq_aio.admin.groups import GroupAdmin
from rocketmq_aio.admin.messages import DEFAULT_MAX_MESSAGES, MessageAdmin
from rocketmq_aio.admin.offsets import OffsetAdmin, Target
from rocketmq_aio.admin.results import (
    BrokerRuntime,
    ClientConnection,
    ClusterInfo,
    GroupConfig,
    GroupConnections,
    GroupProgress,
    OffsetReset,
    TopicConfig,
    TopicRouteInfo,
    TopicStats,
)
from rocketmq_aio.admin.servers import Servers
from rocketmq_aio.admin.topic_settings import TopicSettings
from rocketmq_aio.admin.topics import TopicAdmin
from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.protocol.requests.admin import GetBrokerRuntime, KVTable

NO_GROUP: Final = "ADMIN"  # not a group: it only names the tasks


class AdminClient(ClientBase):
    """Administers topics, groups, offsets and brokers, and finds messages::

        async with AdminClient(namesrv="127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queues=16)
            print((await admin.group_progress("billing")).lag)

    Creating and deleting are idempotent.  A call to several servers succeeds on all of them, or
    raises `AdminError` with the outcome of each.  A topic that does not exist raises
    `RouteNotFoundError`.  An account without the permission gets `AuthError` or
    `PermissionDeniedError`.  All methods may be called concurrently.

    :param namesrv: where to connect; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    """

    def __init__(
        self, *, namesrv: str | None = None, client: MQClientInstance | ClientConfig | None = None
    ) -> None:
        super().__init__(NO_GROUP, namesrv=namesrv, client=client)
        self._servers = Servers(self._instance, self._check_running)
        self._topics = TopicAdmin(self._servers)
        self._groups = GroupAdmin(self._servers, self._topics)
        self._offsets = OffsetAdmin(self._servers, self._groups)
        self._messages = MessageAdmin(self._servers)

    # --- topics -----------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
        **settings: Unpack[TopicSettings],
    ) -> list[TopicConfig]:
        """Create a topic on all masters, on those of *cluster*, or on *brokers*.

        Returns when a name server has routes to all of them.  A broker that has the topic with
        these settings is skipped.  See `TopicSettings`; the default is 8 read and write queues.

        :raises ConfigError: an argument is invalid, or a broker has the topic with other settings
            (see `update_topic`); nothing was changed
        :raises RouteNotFoundError: it was created, but no name server lists it within 10 s
        """
        return await self._topics.create(topic, cluster, brokers, settings)

    async def update_topic(
        self,
        topic: str,
        *,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
        **settings: Unpack[TopicSettings],
    ) -> list[TopicConfig]:
        """Change the given *settings* of a topic on every broker that has it.

        To shrink a topic without losing messages, reduce ``write_queues`` first, and
        ``read_queues`` when the queues are empty.

        :raises RouteNotFoundError: none of the chosen brokers has the topic
        """
        return await self._topics.update(topic, cluster, brokers, settings)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages, in *cluster* or everywhere; it may be missing.

        Deletes on all masters, then on all name servers.  Repeat the call when one fails: a
        broker that still has the topic registers it with the name servers again.

        :raises AdminError: some servers failed; ``failed`` has the causes.  If one of them is a
            broker, name servers were not changed
        """
        await self._topics.delete(topic, cluster)

    async def list_topics(self, *, cluster: str | None = None, internal: bool = False) -> list[str]:
        """Return the names of all topics, or of those of *cluster*, sorted.

        :param internal: include system topics and those of groups (retry, dead letter)
        :raises ConfigError: there is no such cluster
        """
        return await self._topics.list_names(cluster, internal)

    async def topic_route(self, topic: str) -> TopicRouteInfo:
        """Return the brokers and queues of a topic."""
        return await self._topics.route(topic)

    async def topic_config(self, topic: str) -> list[TopicConfig]:
        """Return the settings of a topic on each broker that has it."""
        return await self._topics.configs(topic)

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the first and last offsets of the queues of a topic."""
        return await self._topics.stats(topic)

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that consume a topic or have committed offsets of it, sorted."""
        return await self._topics.groups(topic)

    # --- groups -----------------------------------------------------------------------------------

    async def create_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
        **settings: Unpack[GroupSettings],
    ) -> list[GroupConfig]:
        """Create a consumer group on all masters, on those of *cluster*, or on *brokers*.

        A broker that has the group with these settings is skipped.  See `GroupSettings`.

        :raises ConfigError: an argument is invalid, or a broker has the group with other settings
            (see `update_group`); nothing was changed
        :raises NotSupportedError: a setting needs a newer broker
        """
        return await self._groups.create(group, cluster, brokers, settings)

    async def update_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
        **settings: Unpack[GroupSettings],
    ) -> list[GroupConfig]:
        """Change the given *settings* of a group on every broker that has it.

        :raises SubscriptionError: none of the chosen brokers has the group
        :raises NotSupportedError: a setting needs a newer broker
        """
        return await self._groups.update(group, cluster, brokers, settings)

    async def delete_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        keep_offsets: bool = False,
        delete_topics: bool = False,
    ) -> None:
        """Delete a consumer group, in *cluster* or everywhere; it may be missing.

        Connected members create it again where brokers create groups automatically.

        :param keep_offsets: keep the offsets for a later group of the same name
        :param delete_topics: also delete its retry topic and dead-letter topic
        """
        await self._groups.delete(group, cluster, keep_offsets, delete_topics)

    async def list_groups(self, *, cluster: str | None = None, internal: bool = False) -> list[str]:
        """Return the names of all consumer groups, or of those in *cluster*, sorted.

        :param internal: include the groups of brokers and tools
        """
        return await self._groups.list_names(cluster, internal)

    async def group_config(self, group: str) -> list[GroupConfig]:
        """Return the settings of a consumer group on each broker that has it, if any."""
        return await self._groups.configs(group)

    async def consumer_connections(self, group: str) -> GroupConnections:
        """Return the connected members of a consumer group, and its subscriptions."""
        return await self._groups.consumer_connections(group)

    async def producer_connections(self, group: str) -> list[ClientConnection]:
        """Return the connected producers of a group."""
        return await self._groups.producer_connections(group)

    # --- offsets ----------------------------------------------------------------------------------

    async def group_progress(
        self, group: str, topic: str | None = None, *, owners: bool = False
    ) -> GroupProgress:
        """Return committed offsets and lag of a group in *topic*, or in all topics with commits.

        A group that does not exist has consumed nothing.  The retry topic is one of the topics.
        While members are connected, brokers leave out topics without a subscription.

        :param owners: also ask each member for its queues; ``silent`` has the failures
        """
        return await self._offsets.progress(group, topic, owners)

    async def reset_offsets(self, group: str, topic: str, to: Target) -> list[OffsetReset]:
        """Set the offsets of a group in a topic; its members may be connected.

        Brokers from 5.0 store the offset, return it to the next reader, and ignore commits until
        then.  Older brokers notify the connected members, by a timestamp only.  Without connected
        members the offset is committed and read back.

        :param to: ``"earliest"``, ``"latest"``, a time (the first message stored then or later,
            verified against stored messages if the account may read as group
            ``TOOLS_CONSUMER``), or offsets by queue, of any queues of the topic
        :raises ConfigError: an argument is invalid, or a queue has no such offset
        :raises NotSupportedError: a broker resets connected groups by time only, and offsets are
            given; or the group is connected and the topic static: stop the members first
        :raises SubscriptionError: there is no such group (5.x brokers only)
        """
        return await self._offsets.reset(group, topic, to)

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None
    ) -> list[OffsetReset]:
        """Copy the offsets of group *source* to *target*, in *topic* or in all topics with commits.

        The retry topic is not copied.

        :raises ConfigError: members of *target* are connected, and would overwrite the offsets
        :raises SubscriptionError: there is no group *target* (5.x brokers only)
        """
        return await self._offsets.clone(source, target, topic)

    # --- messages ---------------------------------------------------------------------------------

    async def view_message(self, offset_message_id: str) -> MessageExt:
        """Return the message that *offset_message_id* refers to.

        The id contains the address of the broker to ask; ``address_mapper`` applies.

        :raises ConfigError: the id is invalid, or refers to a batch that is stored as one
        :raises MessageNotFoundError: there is no message, or it has been deleted
        :raises CodecError: it cannot be decoded, for example without the extra ``compression``
        """
        return await self._messages.view(offset_message_id)

    async def view_messages(self, offset_message_id: str) -> list[MessageExt]:
        """Return all messages that *offset_message_id* refers to.

        There are several in a batch that is stored as one (topics of the type BatchCQ).  Errors
        are those of `view_message`.
        """
        return await self._messages.view_all(offset_message_id)

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        max_messages: int = DEFAULT_MAX_MESSAGES,
    ) -> list[MessageExt]:
        """Return the messages of *topic* that have *key*, in the order of their store times.

        Brokers index keys shortly after they acknowledge a message.

        :param max_messages: per broker; a broker has a limit of its own, 64 by default
        :raises UnreadableMessagesError: some cannot be decoded; ``messages`` has the others
        :raises AdminError: some brokers did not answer; ``done`` has the messages of the others
        """
        return await self._messages.query(topic, key, begin, end, max_messages)

    async def find_message(
        self,
        topic: str,
        message_id: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> list[MessageExt]:
        """Return the messages of *topic* with the producer's id (``message_id``).

        There are several if a send was retried, or for the id of a batch that is stored as one.
        Parameters and errors are those of `query_messages`.
        """
        return await self._messages.find(topic, message_id, begin, end)

    # --- brokers ----------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers registered with any name server, replicas included.

        :raises NameServerUnavailableError: no name server answered
        :raises NotSupportedError: the servers are proxies, which do not support this
        """
        return await self._servers.cluster_info()

    async def broker_stats(
        self, *, cluster: str | None = None, brokers: Iterable[str] | None = None
    ) -> list[BrokerRuntime]:
        """Return the runtime statistics of masters: version, rates, disks, request queues.

        :raises ConfigError: there is no such cluster or broker
        """
        masters = await self._servers.masters(cluster, brokers)
        tables = await self._servers.read_each(
            "reading statistics", masters, GetBrokerRuntime(), KVTable
        )
        return [
            BrokerRuntime(broker_name=name, address=masters[name] or "", stats=each.table)
            for name, each in tables.items()
        ]

    async def _open(self) -> None:
        """Nothing: an administrator does not register with brokers, it only sends requests."""

    async def _shut(self) -> None:
        """Nothing: there is no registration."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._instance.config.namesrv!r}>"
