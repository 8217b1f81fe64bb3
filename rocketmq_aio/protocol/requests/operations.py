"""Requests of operators: maintenance of brokers, name servers, controllers, accounts, lite topics.

``protocol/operations.json`` has the same fields, and a test compares them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rocketmq_aio.protocol.bodies import Body
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.header import RequestHeader, TopicRequest, bare_request
from rocketmq_aio.protocol.requests.admin import CreateTopic, TopicConfigBody, TopicConfigTable
from rocketmq_aio.protocol.static_topics import GLOBAL_SCOPE


def _bare(code: RequestCode) -> RequestHeader:
    return bare_request(code, __name__)()


# --- topics, groups, offsets ------------------------------------------------------------------

PUT_TOPICS: Final = _bare(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
PUT_GROUPS: Final = _bare(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
SET_REQUEST_MODE: Final = _bare(RequestCode.SET_MESSAGE_REQUEST_MODE)


class CreateStaticTopic(CreateTopic, frozen=True, kw_only=True):
    """Store the mapping of a static topic on one broker; the body is a TopicMapping."""

    code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC


class PhysicalQueue(Body, frozen=True):
    """A physical queue in the history of a logical one (Java: LogicQueueMappingItem).

    :ivar gen: how often the logical queue had moved before
    :ivar logic_offset: logical offset of the physical offset *start_offset*; -1: not decided yet
    :ivar end_offset: -1: open
    """

    gen: int
    queue_id: int
    bname: str
    logic_offset: int
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


class TopicMapping(Body, frozen=True):
    """The logical queues of a static topic that a broker has or had (TopicQueueMappingDetail)."""

    topic: str = ""
    scope: str = GLOBAL_SCOPE
    total_queues: int = 0
    bname: str = ""
    epoch: int = 0
    dirty: bool = False
    hosted_queues: dict[int, list[PhysicalQueue]] = msgspec.field(default_factory=dict)


class MappedTopicBody(TopicConfigBody, frozen=True):
    """Response to GetTopicConfig with the mapping."""

    mapping_detail: TopicMapping | None = None


class MappedTopicTable(TopicConfigTable, frozen=True):
    """Response to GetAllTopicConfig with the mappings of static topics (5.x)."""

    topic_queue_mapping_detail_map: dict[str, TopicMapping] = msgspec.field(default_factory=dict)


class GetMemberOffsets(TopicRequest, frozen=True, kw_only=True):
    """Get the offsets that the members of a group have in memory, through the broker."""

    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    group: str
    client_addr: str | None = None


class GetConsumeTimeSpan(TopicRequest, frozen=True, kw_only=True):
    """Get the store times of the first, the last and the last consumed message of each queue."""

    code = RequestCode.QUERY_CONSUME_TIME_SPAN
    group: str


# --- brokers ----------------------------------------------------------------------------------

GET_BROKER_CONFIG: Final = _bare(RequestCode.GET_BROKER_CONFIG)
UPDATE_BROKER_CONFIG: Final = _bare(RequestCode.UPDATE_BROKER_CONFIG)
CLEAN_EXPIRED_QUEUES: Final = _bare(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
CLEAN_UNUSED_TOPICS: Final = _bare(RequestCode.CLEAN_UNUSED_TOPIC)
DELETE_EXPIRED_LOGS: Final = _bare(RequestCode.DELETE_EXPIRED_COMMITLOG)
GET_PRODUCERS: Final = _bare(RequestCode.GET_ALL_PRODUCER_INFO)
GET_HA_STATUS: Final = _bare(RequestCode.GET_BROKER_HA_STATUS)
GET_EPOCHS: Final = _bare(RequestCode.GET_BROKER_EPOCH_CACHE)
GET_COLD_DATA: Final = _bare(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
LIMIT_COLD_DATA: Final = _bare(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)
UNLIMIT_COLD_DATA: Final = _bare(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
ROLL_BACK_POPS: Final = _bare(RequestCode.POP_ROLLBACK)


class GetStatistics(RequestHeader, frozen=True, kw_only=True):
    """Get one of the statistics of a broker; response 1 if it counted nothing."""

    code = RequestCode.VIEW_BROKER_STATS_DATA
    stats_name: str
    stats_key: str


class GetBrokerConsumeStats(RequestHeader, frozen=True, kw_only=True):
    """Get the progress of all groups of a broker."""

    code = RequestCode.GET_BROKER_CONSUME_STATS
    is_order: bool


class GetConsumeQueue(RequestHeader, frozen=True, kw_only=True):
    """Get entries of a consume queue, matched with the subscription of a group if given."""

    code = RequestCode.QUERY_CONSUME_QUEUE
    topic: str | None = None
    queue_id: int | None = None
    index: int | None = None
    count: int | None = None
    consumer_group: str | None = None


class CheckRocksDBQueues(TopicRequest, frozen=True, kw_only=True):
    """Compare the consume queues in RocksDB with those in files."""

    code = RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS
    check_store_time: int | None = None


class ExportRocksDBConfig(RequestHeader, frozen=True, kw_only=True):
    """Write the settings in RocksDB to JSON files of the broker."""

    code = RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON
    config_type: str


class AddBroker(RequestHeader, frozen=True, kw_only=True):
    """To a container: start a broker with a configuration file on its machine."""

    code = RequestCode.ADD_BROKER
    config_path: str | None = None


class RemoveBroker(RequestHeader, frozen=True, kw_only=True):
    """To a container: stop one of its brokers."""

    code = RequestCode.REMOVE_BROKER
    broker_name: str
    broker_cluster_name: str
    broker_id: int


class ResetMasterFlushOffset(RequestHeader, frozen=True, kw_only=True):
    """To a slave: forget the flush offset of its master."""

    code = RequestCode.RESET_MASTER_FLUSH_OFFSET
    master_flush_offset: int


class SetReadAhead(RequestHeader, frozen=True, kw_only=True):
    """Set how the operating system reads commit log files: 0 normal, 1 random."""

    code = RequestCode.SET_COMMITLOG_READ_MODE
    mode: str | None = msgspec.field(name="READ_AHEAD_MODE", default=None)


class SwitchTimerEngine(RequestHeader, frozen=True, kw_only=True):
    """Choose the engine of delayed messages: ``R`` is RocksDB, ``F`` the file time wheel."""

    code = RequestCode.SWITCH_TIMER_ENGINE
    engine: str | None = msgspec.field(name="E_T", default=None)


# --- name servers -----------------------------------------------------------------------------

GET_NAME_SERVER_CONFIG: Final = _bare(RequestCode.GET_NAMESRV_CONFIG)
UPDATE_NAME_SERVER_CONFIG: Final = _bare(RequestCode.UPDATE_NAMESRV_CONFIG)


class ListKVConfig(RequestHeader, frozen=True, kw_only=True):
    """List the values of a namespace; response 22 if there is none."""

    code = RequestCode.GET_KVLIST_BY_NAMESPACE
    namespace: str


class WipeWritePermission(RequestHeader, frozen=True, kw_only=True):
    """Take the write permission from the routes of a broker."""

    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    broker_name: str


class AddWritePermission(RequestHeader, frozen=True, kw_only=True):
    """Give the write permission back."""

    code = RequestCode.ADD_WRITE_PERM_OF_BROKER
    broker_name: str


# --- controllers ------------------------------------------------------------------------------

GET_CONTROLLER_METADATA: Final = _bare(RequestCode.CONTROLLER_GET_METADATA_INFO)
GET_CONTROLLER_CONFIG: Final = _bare(RequestCode.GET_CONTROLLER_CONFIG)
UPDATE_CONTROLLER_CONFIG: Final = _bare(RequestCode.UPDATE_CONTROLLER_CONFIG)


class GetInSyncSets(RequestHeader, frozen=True, kw_only=True):
    """Get the in-sync replicas of the brokers in the body."""

    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    invoke_time: int | None = None


class ElectMaster(RequestHeader, frozen=True, kw_only=True):
    """Make a replica the master."""

    code = RequestCode.CONTROLLER_ELECT_MASTER
    cluster_name: str
    broker_name: str
    broker_id: int
    designate_elect: bool
    invoke_time: int | None = None


class CleanBrokerData(RequestHeader, frozen=True, kw_only=True):
    """Forget replicas of a broker."""

    code = RequestCode.CLEAN_BROKER_DATA
    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool | None = None
    invoke_time: int | None = None


# --- access control ---------------------------------------------------------------------------

GET_ACCOUNT_VERSION: Final = _bare(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)


class PutAccount(RequestHeader, frozen=True, kw_only=True):
    """Create or change an account of ACL 1.0 (4.9)."""

    code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class DeleteAccount(RequestHeader, frozen=True, kw_only=True):
    """Delete an account of ACL 1.0 (4.9)."""

    code = RequestCode.DELETE_ACL_CONFIG
    access_key: str


class PutWhiteAddresses(RequestHeader, frozen=True, kw_only=True):
    """Set the addresses that need no account (4.9)."""

    code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
    global_white_addrs: str
    acl_file_full_path: str


class _UserRequest(RequestHeader, frozen=True, kw_only=True):
    username: str | None = None


class CreateUser(_UserRequest, frozen=True, kw_only=True):
    """Create the user in the body."""

    code = RequestCode.AUTH_CREATE_USER


class UpdateUser(_UserRequest, frozen=True, kw_only=True):
    """Change a user: the fields in the body."""

    code = RequestCode.AUTH_UPDATE_USER


class DeleteUser(_UserRequest, frozen=True, kw_only=True):
    """Delete a user."""

    code = RequestCode.AUTH_DELETE_USER


class GetUser(_UserRequest, frozen=True, kw_only=True):
    """Get a user."""

    code = RequestCode.AUTH_GET_USER


class ListUsers(RequestHeader, frozen=True, kw_only=True):
    """List the users whose names contain *filter*."""

    code = RequestCode.AUTH_LIST_USER
    filter: str | None = None


class _SubjectRequest(RequestHeader, frozen=True, kw_only=True):
    subject: str | None = None


class CreatePolicies(_SubjectRequest, frozen=True, kw_only=True):
    """Create the policies in the body."""

    code = RequestCode.AUTH_CREATE_ACL


class UpdatePolicies(_SubjectRequest, frozen=True, kw_only=True):
    """Change the policies in the body, by their resources."""

    code = RequestCode.AUTH_UPDATE_ACL


class DeletePolicies(_SubjectRequest, frozen=True, kw_only=True):
    """Delete the policies of a subject, or of one resource."""

    code = RequestCode.AUTH_DELETE_ACL
    policy_type: str | None = None
    resource: str | None = None


class GetPolicies(_SubjectRequest, frozen=True, kw_only=True):
    """Get the policies of a subject."""

    code = RequestCode.AUTH_GET_ACL


class ListPolicies(RequestHeader, frozen=True, kw_only=True):
    """List policies by parts of subject and resource."""

    code = RequestCode.AUTH_LIST_ACL
    subject_filter: str | None = None
    resource_filter: str | None = None


# --- lite topics ------------------------------------------------------------------------------

GET_LITE_BROKER: Final = _bare(RequestCode.GET_BROKER_LITE_INFO)


class GetLiteParent(TopicRequest, frozen=True, kw_only=True):
    """Get the groups and the number of lite topics of a topic."""

    code = RequestCode.GET_PARENT_TOPIC_INFO


class GetLiteTopic(RequestHeader, frozen=True, kw_only=True):
    """Get the subscribers and offsets of a lite topic."""

    code = RequestCode.GET_LITE_TOPIC_INFO
    parent_topic: str | None = None
    lite_topic: str | None = None


class GetLiteClient(RequestHeader, frozen=True, kw_only=True):
    """Get the lite topics that a client subscribes to."""

    code = RequestCode.GET_LITE_CLIENT_INFO
    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    max_count: int | None = None


class GetLiteGroup(RequestHeader, frozen=True, kw_only=True):
    """Get the lag of a group in a lite topic, or the lite topics with the most."""

    code = RequestCode.GET_LITE_GROUP_INFO
    group: str
    lite_topic: str | None = None
    top_k: int | None = None


class TriggerLiteDispatch(RequestHeader, frozen=True, kw_only=True):
    """Deliver waiting messages of lite topics now."""

    code = RequestCode.TRIGGER_LITE_DISPATCH
    group: str
    client_id: str | None = None


SINCE: Final = {  # releases; all others are in 4.9
    "5.0": (351, 401, 513, 902, 903, 907, 908, *range(1002, 1012)),
    "5.1.2": range(2001, 2005),
    "5.3.0": (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, *range(3001, 3011)),
    "5.3.1": (
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
    ),
    "5.3.2": (RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, RequestCode.POP_ROLLBACK),
    "5.4.0": (RequestCode.SWITCH_TIMER_ENGINE,),
    "5.5.0": range(200074, 200080),
}
CONTAINER_REQUESTS: Final = (RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER)
CONTROLLER_REQUESTS: Final = (*(1002, 1005, 1006), *range(1009, 1012))


def server_kind(code: int) -> str:
    """Return the kind of server that request *code* is for."""
    if code in CONTAINER_REQUESTS:
        return "broker container"
    return "controller" if code in CONTROLLER_REQUESTS else "broker"


def first_release(code: int) -> str | None:
    """Return the first release of brokers with request *code*, None if it is older than 5.0."""
    return next((release for release, codes in SINCE.items() if code in codes), None)
