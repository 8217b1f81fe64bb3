"""Administration of a broker itself: configuration and runtime information."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from rocketmq_aio.admin.server_results import HAClient, HASlave, HAStatus, read_properties
from rocketmq_aio.embedded.broker.state import (
    AUTO_CREATE_GROUPS,
    AUTO_CREATE_TOPICS,
    LIGHT_QUEUES,
    MULTI_DISPATCH,
    RATE_SECONDS,
    BrokerState,
)
from rocketmq_aio.embedded.handlers import answers, reads
from rocketmq_aio.embedded.responses import Response, properties_body
from rocketmq_aio.protocol.codes import MASTER_ID, RequestCode
from rocketmq_aio.protocol.command import Command

# Settings with the defaults of real brokers.  These can be updated, without an effect:
KEPT_SETTINGS: Final = {
    "defaultTopicQueueNums": "8",
    "deleteWhen": "04",
    "diskMaxUsedSpaceRatio": "75",
    "fileReservedTime": "72",
    "flushDiskType": "ASYNC_FLUSH",
    "flushIntervalCommitLog": "500",
    "longPollingEnable": "true",
    "maxMessageSize": "4194304",
    "maxTransferBytesOnMessageInMemory": "262144",
    "maxTransferCountOnMessageInMemory": "32",
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "notifyConsumerIdsChangedEnable": "true",
    "rejectTransactionMessage": "false",
    "slaveReadEnable": "false",
    "traceOn": "true",
    "traceTopicEnable": "false",
    "transactionCheckMax": "15",
    "transactionTimeOut": "6000",
    "useTLS": "false",
}
# These have one:
PERMISSION: Final = "brokerPermission"
PERMISSIONS: Final = tuple(map(str, range(8)))
SETTINGS: Final = KEPT_SETTINGS | {
    AUTO_CREATE_TOPICS: "true",
    AUTO_CREATE_GROUPS: "true",
    LIGHT_QUEUES: "false",
    MULTI_DISPATCH: "false",
    PERMISSION: "6",
}
# Runtime information that an embedded broker does not have.
ALWAYS_0: Final = """dispatchBehindBytes msgPutTotalTodayMorning msgPutTotalYesterdayMorning
    msgGetTotalTodayMorning msgGetTotalYesterdayMorning sendThreadPoolQueueSize
    sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize
    pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills commitLogMinOffset""".split()
ALWAYS_0_IN_5: Final = "timerReadBehind timerOffsetBehind timerCongestNum".split()
SETTINGS_4: Final = {"filterServerNums": "0"}
SETTINGS_5: Final = {"recallMessageEnable": "false", "useServerSideResetOffset": "true"}


class Replica(Protocol):
    """A broker that shares a state with its replicas.

    :ivar copies: the broker and all its replicas
    """

    broker_id: int
    port: int

    @property
    def address(self) -> str: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def copies(self) -> Sequence[Replica]: ...


class AdminProcessor:
    """Describes a broker; reads and updates its configuration."""

    def __init__(self, state: BrokerState, broker: Replica) -> None:
        self._state = state
        self._broker = broker
        self._started_ms = state.clock.now_ms()
        self._defaults = SETTINGS | (SETTINGS_5 if state.version.is_5 else SETTINGS_4)

    @answers(RequestCode.GET_BROKER_CONFIG)
    def config(self) -> object:
        state = self._state
        table = {
            **self._defaults,
            "brokerName": state.name,
            "brokerClusterName": state.cluster,
            "brokerId": str(self._broker.broker_id),
            "brokerIP1": state.store.host[0],
            "brokerRole": "ASYNC_MASTER" if self._broker.broker_id == MASTER_ID else "SLAVE",
            "listenPort": str(self._broker.port),
            AUTO_CREATE_TOPICS: str(state.auto_create_topics).lower(),
            AUTO_CREATE_GROUPS: str(state.auto_create_groups).lower(),
            **state.settings,
        }
        version = msgspec.json.encode(state.data_version()).decode()
        return Response(ext={"version": version}, body=properties_body(table))

    @reads(Command, RequestCode.UPDATE_BROKER_CONFIG)
    def update_config(self, command: Command) -> None:
        """Store settings; unknown names and impossible values are ignored, as by real brokers."""
        given = read_properties(command.body)
        self._state.update_settings(
            {
                name: value
                for name, value in given.items()
                if name in self._defaults
                and (name != PERMISSION or value in PERMISSIONS)
                and (value.isdecimal() or not self._defaults[name].isdecimal())
            }
        )

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self) -> object:
        state, stored = self._state, self._state.store
        uptime = (state.clock.now_ms() - self._started_ms) // 1000
        logs = [log for topic in stored.topics.values() for log in topic.queues]
        count = str(sum(log.max_offset for log in logs))
        times = [log.messages[0].store_ms for log in logs if log.messages]
        table = dict.fromkeys(ALWAYS_0, "0") | {
            "brokerVersion": str(state.version.number),
            "brokerVersionDesc": "V" + state.version.name.replace(".", "_"),
            "bootTimestamp": str(self._started_ms),
            "runtime": f"[ {uptime // 86400} days, {uptime // 3600 % 24} hours, "
            f"{uptime // 60 % 60} minutes, {uptime % 60} seconds ]",
            "commitLogMaxOffset": str(stored.log_end),
            "earliestMessageTimeStamp": str(min(times, default=-1)),
            "putMessageTimesTotal": count,
            "putMessageSizeTotal": str(stored.log_end),
            "msgPutTotalTodayNow": count,
            "msgGetTotalTodayNow": str(state.delivery_rate.total),
            "putTps": _joined(stored.rate),
            "getTransferredTps" if state.version.is_5 else "getTransferedTps": _joined(
                state.delivery_rate.per_second
            ),
            "commitLogDiskRatio": "0.0",
            "sendThreadPoolQueueCapacity": "10000",
            "pullThreadPoolQueueCapacity": "100000",
        }
        if state.version.is_5:
            table |= dict.fromkeys(ALWAYS_0_IN_5, "0") | {"brokerActive": "true"}
            table |= {"timerEnqueueTps": "0.0", "timerDequeueTps": "0.0"}
        return {"table": table}

    @answers(RequestCode.GET_BROKER_HA_STATUS, version=5)
    def ha_status(self) -> object:
        end, me = self._state.store.log_end, self._broker
        others = [each for each in me.copies if each is not me and each.is_running]
        if me.broker_id == MASTER_ID:
            slaves = [HASlave(addr=e.address, slave_ack_offset=end, in_sync=True) for e in others]
            return HAStatus(
                master=True,
                master_commit_log_max_offset=end,
                in_sync_slave_nums=len(slaves),
                slaves=tuple(slaves),
            )
        master = next((each.address for each in others if each.broker_id == MASTER_ID), "")
        client = HAClient(
            master_addr=master, max_offset=end, master_flush_offset=end, is_activated=bool(master)
        )
        return HAStatus(client=client)

    @answers(
        *(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC),
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    )
    def nothing_to_clean(self) -> None:
        """Respond like a broker without unused queues or topics, or expired files."""


def _joined(rate: Callable[[int], float]) -> str:
    return " ".join(str(rate(seconds)) for seconds in RATE_SECONDS)
