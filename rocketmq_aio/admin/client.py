"""AdminClient: holds one part per kind of thing that it administers."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.admin.acl import AclAdmin
from rocketmq_aio.admin.brokers import BrokerAdmin
from rocketmq_aio.admin.controllers import ControllerAdmin
from rocketmq_aio.admin.groups import GroupAdmin
from rocketmq_aio.admin.lite import LiteAdmin
from rocketmq_aio.admin.messages import MessageAdmin
from rocketmq_aio.admin.metadata import MetadataAdmin
from rocketmq_aio.admin.name_servers import NameServerAdmin
from rocketmq_aio.admin.offsets import OffsetAdmin
from rocketmq_aio.admin.servers import Servers
from rocketmq_aio.admin.static_topics import StaticTopicAdmin
from rocketmq_aio.admin.topics import TopicAdmin
from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.client_instance import MQClientInstance

NO_GROUP: Final = "ADMIN"  # not a group: it only names the tasks


class AdminClient(ClientBase):
    """Administers topics, groups, offsets and brokers, and finds messages::

        async with AdminClient(namesrv="127.0.0.1:9876") as admin:
            await admin.topics.create("orders", queues=16)
            print((await admin.groups.progress("billing")).lag)

    Creating and deleting are idempotent.  A call to several servers succeeds on all of them, or
    raises `AdminError` with the outcome of each.  A topic that does not exist raises
    `RouteNotFoundError`.  An account without the permission gets `AuthError` or
    `PermissionDeniedError`.  All methods may be called concurrently.

    Its own methods, such as `create_topic`, are those of the parts.

    :param namesrv: where to connect; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    """

    def __init__(
        self, *, namesrv: str | None = None, client: MQClientInstance | ClientConfig | None = None
    ) -> None:
        super().__init__(NO_GROUP, namesrv=namesrv, client=client)
        self._servers = servers = Servers(self._instance, self._check_running)
        self.topics: Final = TopicAdmin(servers)
        self.static_topics: Final = StaticTopicAdmin(servers)
        self.groups: Final = GroupAdmin(servers, self.topics)
        self.offsets: Final = OffsetAdmin(servers, self.groups)
        self.messages: Final = MessageAdmin(servers)
        self.brokers: Final = BrokerAdmin(servers)
        self.name_servers: Final = NameServerAdmin(servers)
        self.controllers: Final = ControllerAdmin(servers)
        self.acl: Final = AclAdmin(servers)
        self.lite: Final = LiteAdmin(servers)
        self.metadata: Final = MetadataAdmin(servers, self.topics, self.static_topics, self.groups)

        self.create_topic: Final = self.topics.create
        self.update_topic: Final = self.topics.update
        self.delete_topic: Final = self.topics.delete
        self.list_topics: Final = self.topics.list
        self.topic_route: Final = self.topics.route
        self.topic_config: Final = self.topics.config
        self.topic_stats: Final = self.topics.stats
        self.topic_groups: Final = self.topics.groups
        self.create_group: Final = self.groups.create
        self.update_group: Final = self.groups.update
        self.delete_group: Final = self.groups.delete
        self.list_groups: Final = self.groups.list
        self.group_config: Final = self.groups.config
        self.group_progress: Final = self.groups.progress
        self.consumer_connections: Final = self.groups.connections
        self.producer_connections: Final = self.groups.producers
        self.reset_offsets: Final = self.offsets.reset
        self.clone_offsets: Final = self.offsets.clone
        self.view_message: Final = self.messages.by_offset_id
        self.view_messages: Final = self.messages.batch_by_offset_id
        self.query_messages: Final = self.messages.by_key
        self.find_message: Final = self.messages.by_id
        self.cluster_info: Final = self.brokers.cluster
        self.broker_stats: Final = self.brokers.stats

    async def _open(self) -> None:
        """Nothing: an administrator does not register with brokers, it only sends requests."""

    async def _shut(self) -> None:
        """Nothing: there is no registration."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._instance.config.namesrv!r}>"
