"""An asyncio client for Apache RocketMQ, over the brokers' native remoting protocol."""

# Names are loaded on first use: a producer needs no consumers, and loading everything takes three
# times as long.  After a change of the table run `python tools/make_stub.py`, which writes the
# stub `__init__.pyi` for type checkers.
from typing import Final

from rocketmq_aio.lazy_names import lazy_names

__version__ = "0.1.0"

_NAMES: Final = {  # by module
    "admin.client": "AdminClient",
    "admin.results": (
        "BrokerInfo BrokerRuntime ClientConnection ClusterInfo GroupConfig GroupConnections "
        "GroupProgress OffsetReset QueueCount QueueProgress QueueStats SubscriptionInfo "
        "TopicConfig TopicRouteInfo TopicStats describe_message"
    ),
    "config.client": "ClientConfig ClientSettings Credentials HeaderEncoding",
    "config.consumer": (
        "AllocateStrategy LitePullConfig OffsetPolicy OffsetStore PopConfig PushConfig "
        "StartFrom UndecodablePolicy UnreadablePolicy"
    ),
    "config.producer": "AutoBatch Compression ProducerConfig",
    "consumer.common.events": (
        "AckFailed ClientIdNotUnique CommitFailed ConsumerEvent CorruptOffsetFile HandlerStuck "
        "LeaseLost LeaseRegained MembersDiffer MessageDeadLettered MessageDropped "
        "MessageUndecodable MessageUnreadable OffsetCorrected PullFailed QueueHeld "
        "QueuesAssigned QueuesRevoked SubscriptionMatchesNothing SubscriptionsDiffer TopicFound "
        "TopicMissing"
    ),
    "consumer.common.listeners": "AssignmentListener TopicQueuesListener",
    "consumer.common.statistics": "TopicStatistics",
    "consumer.lite_pull.consumer": "LitePullConsumer",
    "consumer.offsets.local_file": "LocalFileOffsetStore",
    "consumer.offsets.remote_store": "RemoteOffsetStore",
    "consumer.pop.consumer": "PopConsumer",
    "consumer.pop.message": "PoppedMessage",
    "consumer.pull.consumer": "PullConsumer",
    "consumer.pull.result": "PullResult PullStatus RawPull",
    "consumer.push.consumer": "PushConsumer",
    "consumer.push.handlers": "BatchContext BatchHandler MessageHandler RetryLater SuspendQueue",
    "consumer.rebalance.strategies.averagely": "AllocateAveragely AllocateAveragelyByCircle",
    "consumer.rebalance.strategies.by_config": "AllocateByConfig",
    "consumer.rebalance.strategies.consistent_hash": "AllocateConsistentHash",
    "consumer.rebalance.strategies.machine_room": (
        "AllocateByMachineRoom AllocateMachineRoomNearby MachineRoomResolver"
    ),
    "core": "compiled",
    "errors": (
        "AckError AdminError AuthError BackpressureError BatchError BrokerError BusyError "
        "ClosedError CodecError CommitError ConfigError ConnectionLostError HalfMessageError "
        "InvalidMessageError MessageNotFoundError NameServerUnavailableError NotConnectedError "
        "NotRunningError NotSupportedError OffsetIllegalError PayloadError "
        "PermissionDeniedError ReceiptError ReplyTimeoutError RequestTimeoutError RocketMQError "
        "RouteNotFoundError SendAttempt SendError SendUnknownError SubscriptionError "
        "UnreadableMessagesError"
    ),
    "hooks": (
        "CheckForbiddenHook ConsumeContext ConsumeHook EndTransactionContext EndTransactionHook "
        "FilterMessageHook RPCHook SendContext SendHook"
    ),
    "instance.client_instance": "MQClientInstance",
    "model.codec": "Codec JSONCodec MsgpackCodec RawCodec",
    "model.message": "Message MessageExt",
    "model.values": (
        "MessageModel MessageQueue MessageSelector SendResult SendStatus TransactionState"
    ),
    "producer.batching.pre_encoded": "Encoded",
    "producer.producer": "Producer",
    "producer.queue_selectors": "SelectByMachineRoom SelectByRandom select_by_hash",
    "producer.topic_publish_info": "QueueSelector",
    "producer.transaction.checks": "CheckFunction",
    "producer.transaction.producer": "TransactionProducer",
    "producer.transaction.transaction": "Transaction TransactionResult",
    "trace.message_trace": "MessageTrace",
}
_MODULES, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]
