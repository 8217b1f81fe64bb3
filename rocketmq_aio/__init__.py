"""An asyncio client for Apache RocketMQ, over the brokers' native remoting protocol."""

# Names are loaded when they are first used: a producer has no use for consumers, and the whole
# takes three times as long to import.
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rocketmq_aio.admin.client import AdminClient
    from rocketmq_aio.admin.results import (
        BrokerInfo,
        BrokerRuntime,
        ClientConnection,
        ClusterInfo,
        GroupConfig,
        GroupConnections,
        GroupProgress,
        OffsetReset,
        QueueCount,
        QueueProgress,
        QueueStats,
        SubscriptionInfo,
        TopicConfig,
        TopicRouteInfo,
        TopicStats,
        describe_message,
    )
    from rocketmq_aio.config.client import (
        ClientConfig,
        ClientSettings,
        Credentials,
        HeaderEncoding,
    )
    from rocketmq_aio.config.consumer import (
        AllocateStrategy,
        LitePullConfig,
        OffsetPolicy,
        OffsetStore,
        PopConfig,
        PushConfig,
        StartFrom,
        UndecodablePolicy,
        UnreadablePolicy,
    )
    from rocketmq_aio.config.producer import (
        AutoBatch,
        Compression,
        ProducerConfig,
    )
    from rocketmq_aio.consumer.common.events import (
        AckFailed,
        ClientIdNotUnique,
        CommitFailed,
        ConsumerEvent,
        HandlerStuck,
        LeaseLost,
        MessageDeadLettered,
        MessageDropped,
        MessageUndecodable,
        MessageUnreadable,
        OffsetCorrected,
        PullFailed,
        QueueHeld,
        QueuesAssigned,
        QueuesRevoked,
        SubscriptionMatchesNothing,
        SubscriptionsDiffer,
        TopicFound,
        TopicMissing,
    )
    from rocketmq_aio.consumer.common.listeners import (
        AssignmentListener,
        TopicQueuesListener,
    )
    from rocketmq_aio.consumer.common.statistics import TopicStatistics
    from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
    from rocketmq_aio.consumer.offsets.local_file import CorruptOffsetFile, LocalFileOffsetStore
    from rocketmq_aio.consumer.offsets.store import RemoteOffsetStore
    from rocketmq_aio.consumer.pop.consumer import PopConsumer
    from rocketmq_aio.consumer.pop.message import PoppedMessage
    from rocketmq_aio.consumer.pull.consumer import PullConsumer
    from rocketmq_aio.consumer.pull.result import PullResult, PullStatus, RawPull
    from rocketmq_aio.consumer.push.consumer import PushConsumer
    from rocketmq_aio.consumer.push.handlers import (
        BatchContext,
        BatchHandler,
        MessageHandler,
        RetryLater,
        SuspendQueue,
    )
    from rocketmq_aio.consumer.rebalance.strategies.averagely import (
        AllocateAveragely,
        AllocateAveragelyByCircle,
    )
    from rocketmq_aio.consumer.rebalance.strategies.config import AllocateByConfig
    from rocketmq_aio.consumer.rebalance.strategies.consistent_hash import AllocateConsistentHash
    from rocketmq_aio.consumer.rebalance.strategies.machine_room import (
        AllocateByMachineRoom,
        AllocateMachineRoomNearby,
        MachineRoomResolver,
    )
    from rocketmq_aio.errors import (
        AckError,
        AdminError,
        AuthError,
        BackpressureError,
        BatchError,
        BrokerError,
        BusyError,
        ClosedError,
        CodecError,
        CommitError,
        ConfigError,
        ConnectionLostError,
        HalfMessageError,
        InvalidMessageError,
        MessageNotFoundError,
        NameServerUnavailableError,
        NotConnectedError,
        NotRunningError,
        NotSupportedError,
        OffsetIllegalError,
        PayloadError,
        PermissionDeniedError,
        ReceiptError,
        ReplyTimeoutError,
        RequestTimeoutError,
        RocketMQError,
        RouteNotFoundError,
        SendAttempt,
        SendError,
        SendUnknownError,
        SubscriptionError,
        UnreadableMessagesError,
    )
    from rocketmq_aio.hooks import (
        CheckForbiddenHook,
        ConsumeContext,
        ConsumeHook,
        EndTransactionContext,
        EndTransactionHook,
        FilterMessageHook,
        RPCHook,
        SendContext,
        SendHook,
    )
    from rocketmq_aio.instance.instance import MQClientInstance
    from rocketmq_aio.model.codec import Codec, JSONCodec, MsgpackCodec, RawCodec
    from rocketmq_aio.model.message import Message, MessageExt
    from rocketmq_aio.model.values import (
        MessageModel,
        MessageQueue,
        MessageSelector,
        SendResult,
        SendStatus,
        TransactionState,
    )
    from rocketmq_aio.producer.batching.pre_encoded import Encoded
    from rocketmq_aio.producer.producer import Producer
    from rocketmq_aio.producer.queue_selection import (
        SelectByMachineRoom,
        SelectByRandom,
        select_by_hash,
    )
    from rocketmq_aio.producer.topic_publish_info import QueueSelector
    from rocketmq_aio.producer.transaction.checks import (
        CheckFunction,
    )
    from rocketmq_aio.producer.transaction.producer import TransactionProducer
    from rocketmq_aio.producer.transaction.transaction import Transaction, TransactionResult
    from rocketmq_aio.trace.message_trace import MessageTrace

__version__ = "0.1.0"

__all__ = [
    "AckError",
    "AckFailed",
    "AdminClient",
    "AdminError",
    "AllocateAveragely",
    "AllocateAveragelyByCircle",
    "AllocateByConfig",
    "AllocateByMachineRoom",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "AllocateStrategy",
    "AssignmentListener",
    "AuthError",
    "AutoBatch",
    "BackpressureError",
    "BatchContext",
    "BatchError",
    "BatchHandler",
    "BrokerError",
    "BrokerInfo",
    "BrokerRuntime",
    "BusyError",
    "CheckForbiddenHook",
    "CheckFunction",
    "ClientConfig",
    "ClientConnection",
    "ClientIdNotUnique",
    "ClientSettings",
    "ClosedError",
    "ClusterInfo",
    "Codec",
    "CodecError",
    "CommitError",
    "CommitFailed",
    "Compression",
    "ConfigError",
    "ConnectionLostError",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumerEvent",
    "CorruptOffsetFile",
    "Credentials",
    "Encoded",
    "EndTransactionContext",
    "EndTransactionHook",
    "FilterMessageHook",
    "GroupConfig",
    "GroupConnections",
    "GroupProgress",
    "HalfMessageError",
    "HandlerStuck",
    "HeaderEncoding",
    "InvalidMessageError",
    "JSONCodec",
    "LeaseLost",
    "LitePullConfig",
    "LitePullConsumer",
    "LocalFileOffsetStore",
    "MQClientInstance",
    "MachineRoomResolver",
    "Message",
    "MessageDeadLettered",
    "MessageDropped",
    "MessageExt",
    "MessageHandler",
    "MessageModel",
    "MessageNotFoundError",
    "MessageQueue",
    "MessageSelector",
    "MessageTrace",
    "MessageUndecodable",
    "MessageUnreadable",
    "MsgpackCodec",
    "NameServerUnavailableError",
    "NotConnectedError",
    "NotRunningError",
    "NotSupportedError",
    "OffsetCorrected",
    "OffsetIllegalError",
    "OffsetPolicy",
    "OffsetReset",
    "OffsetStore",
    "PayloadError",
    "PermissionDeniedError",
    "PopConfig",
    "PopConsumer",
    "PoppedMessage",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullFailed",
    "PullResult",
    "PullStatus",
    "PushConfig",
    "PushConsumer",
    "QueueCount",
    "QueueHeld",
    "QueueProgress",
    "QueueSelector",
    "QueueStats",
    "QueuesAssigned",
    "QueuesRevoked",
    "RPCHook",
    "RawCodec",
    "RawPull",
    "ReceiptError",
    "RemoteOffsetStore",
    "ReplyTimeoutError",
    "RequestTimeoutError",
    "RetryLater",
    "RocketMQError",
    "RouteNotFoundError",
    "SelectByMachineRoom",
    "SelectByRandom",
    "SendAttempt",
    "SendContext",
    "SendError",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SendUnknownError",
    "StartFrom",
    "SubscriptionError",
    "SubscriptionInfo",
    "SubscriptionMatchesNothing",
    "SubscriptionsDiffer",
    "SuspendQueue",
    "TopicConfig",
    "TopicFound",
    "TopicMissing",
    "TopicQueuesListener",
    "TopicRouteInfo",
    "TopicStatistics",
    "TopicStats",
    "Transaction",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "UndecodablePolicy",
    "UnreadableMessagesError",
    "UnreadablePolicy",
    "describe_message",
    "select_by_hash",
]

_NAMES_OF: Final = {
    "admin.client": "AdminClient",
    "admin.results": (
        "BrokerInfo BrokerRuntime ClientConnection ClusterInfo GroupConfig GroupConnections "
        "GroupProgress OffsetReset QueueCount QueueProgress QueueStats SubscriptionInfo "
        "TopicConfig TopicRouteInfo TopicStats describe_message"
    ),
    "config.client": "ClientConfig ClientSettings Credentials HeaderEncoding",
    "config.consumer": (
        "AllocateStrategy LitePullConfig OffsetPolicy OffsetStore PopConfig PushConfig StartFrom "
        "UndecodablePolicy UnreadablePolicy"
    ),
    "config.producer": "AutoBatch Compression ProducerConfig",
    "consumer.common.events": (
        "AckFailed ClientIdNotUnique CommitFailed ConsumerEvent HandlerStuck LeaseLost "
        "MessageDeadLettered MessageDropped MessageUndecodable MessageUnreadable OffsetCorrected "
        "PullFailed QueueHeld QueuesAssigned QueuesRevoked SubscriptionMatchesNothing "
        "SubscriptionsDiffer TopicFound TopicMissing"
    ),
    "consumer.common.listeners": "AssignmentListener TopicQueuesListener",
    "consumer.common.statistics": "TopicStatistics",
    "consumer.lite_pull.consumer": "LitePullConsumer",
    "consumer.offsets.local_file": "CorruptOffsetFile LocalFileOffsetStore",
    "consumer.offsets.store": "RemoteOffsetStore",
    "consumer.pop.consumer": "PopConsumer",
    "consumer.pop.message": "PoppedMessage",
    "consumer.pull.consumer": "PullConsumer",
    "consumer.pull.result": "PullResult PullStatus RawPull",
    "consumer.push.consumer": "PushConsumer",
    "consumer.push.handlers": "BatchContext BatchHandler MessageHandler RetryLater SuspendQueue",
    "consumer.rebalance.strategies.averagely": "AllocateAveragely AllocateAveragelyByCircle",
    "consumer.rebalance.strategies.config": "AllocateByConfig",
    "consumer.rebalance.strategies.consistent_hash": "AllocateConsistentHash",
    "consumer.rebalance.strategies.machine_room": (
        "AllocateByMachineRoom AllocateMachineRoomNearby MachineRoomResolver"
    ),
    "errors": (
        "AckError AdminError AuthError BackpressureError BatchError BrokerError BusyError "
        "ClosedError CodecError CommitError ConfigError ConnectionLostError HalfMessageError "
        "InvalidMessageError MessageNotFoundError NameServerUnavailableError NotConnectedError "
        "NotRunningError NotSupportedError OffsetIllegalError PayloadError PermissionDeniedError "
        "ReceiptError ReplyTimeoutError RequestTimeoutError RocketMQError RouteNotFoundError "
        "SendAttempt SendError SendUnknownError SubscriptionError UnreadableMessagesError"
    ),
    "hooks": (
        "CheckForbiddenHook ConsumeContext ConsumeHook EndTransactionContext EndTransactionHook "
        "FilterMessageHook RPCHook SendContext SendHook"
    ),
    "instance.instance": "MQClientInstance",
    "model.codec": "Codec JSONCodec MsgpackCodec RawCodec",
    "model.message": "Message MessageExt",
    "model.values": (
        "MessageModel MessageQueue MessageSelector SendResult SendStatus TransactionState"
    ),
    "producer.batching.pre_encoded": "Encoded",
    "producer.producer": "Producer",
    "producer.queue_selection": "SelectByMachineRoom SelectByRandom select_by_hash",
    "producer.topic_publish_info": "QueueSelector",
    "producer.transaction.checks": "CheckFunction",
    "producer.transaction.producer": "TransactionProducer",
    "producer.transaction.transaction": "Transaction TransactionResult",
    "trace.message_trace": "MessageTrace",
}
_HOMES: Final = {name: module for module, names in _NAMES_OF.items() for name in names.split()}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever it names
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
