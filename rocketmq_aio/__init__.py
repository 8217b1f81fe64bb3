"""An asyncio client for Apache RocketMQ, over the brokers' native remoting protocol."""

from rocketmq_aio.auto_batch import AutoBatch
from rocketmq_aio.codec import Codec, JSONCodec, MsgpackCodec, RawCodec
from rocketmq_aio.config import (
    ClientConfig,
    Credentials,
    LitePullConfig,
    PopConfig,
    ProducerConfig,
    PushConfig,
)
from rocketmq_aio.consumer.allocate_config import AllocateByConfig
from rocketmq_aio.consumer.allocate_hash import AllocateConsistentHash
from rocketmq_aio.consumer.allocate_rooms import (
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    MachineRoomResolver,
)
from rocketmq_aio.consumer.allocation import (
    AllocateAveragely,
    AllocateAveragelyByCircle,
    AllocateStrategy,
)
from rocketmq_aio.consumer.events import (
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
)
from rocketmq_aio.consumer.handling import BatchContext, RetryLater, SuspendQueue
from rocketmq_aio.consumer.lite_pull import LitePullConsumer
from rocketmq_aio.consumer.offset_file import CorruptOffsetFile, LocalFileOffsetStore
from rocketmq_aio.consumer.offsets import OffsetStore, RemoteOffsetStore
from rocketmq_aio.consumer.pop import PopConsumer
from rocketmq_aio.consumer.popped import PoppedMessage
from rocketmq_aio.consumer.pull import PullConsumer
from rocketmq_aio.consumer.pull_result import PullResult, PullStatus, RawPull
from rocketmq_aio.consumer.push import PushConsumer
from rocketmq_aio.consumer.statistics import TopicStatistics
from rocketmq_aio.errors import (
    AckError,
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
)
from rocketmq_aio.hooks import ConsumeContext, ConsumeHook, FilterMessageHook, RPCHook
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.message import (
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    SendResult,
    SendStatus,
)
from rocketmq_aio.producer.decisions import TransactionState
from rocketmq_aio.producer.encoded import Encoded
from rocketmq_aio.producer.ordering import (
    SelectByMachineRoom,
    SelectByRandom,
    select_by_hash,
)
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.publishing import QueueSelector
from rocketmq_aio.producer.transaction import Transaction, TransactionResult
from rocketmq_aio.producer.transactions import TransactionProducer

__version__ = "0.1.0"

__all__ = [
    "AckError",
    "AckFailed",
    "AllocateAveragely",
    "AllocateAveragelyByCircle",
    "AllocateByConfig",
    "AllocateByMachineRoom",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "AllocateStrategy",
    "AuthError",
    "AutoBatch",
    "BackpressureError",
    "BatchContext",
    "BatchError",
    "BrokerError",
    "BusyError",
    "ClientConfig",
    "ClientIdNotUnique",
    "ClosedError",
    "Codec",
    "CodecError",
    "CommitError",
    "CommitFailed",
    "ConfigError",
    "ConnectionLostError",
    "ConsumeContext",
    "ConsumeHook",
    "ConsumerEvent",
    "CorruptOffsetFile",
    "Credentials",
    "Encoded",
    "FilterMessageHook",
    "HalfMessageError",
    "HandlerStuck",
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
    "MessageModel",
    "MessageQueue",
    "MessageSelector",
    "MessageUndecodable",
    "MessageUnreadable",
    "MsgpackCodec",
    "NameServerUnavailableError",
    "NotConnectedError",
    "NotRunningError",
    "NotSupportedError",
    "OffsetCorrected",
    "OffsetIllegalError",
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
    "QueueHeld",
    "QueueSelector",
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
    "SendError",
    "SendResult",
    "SendStatus",
    "SendUnknownError",
    "SubscriptionError",
    "SubscriptionMatchesNothing",
    "SubscriptionsDiffer",
    "SuspendQueue",
    "TopicStatistics",
    "Transaction",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "select_by_hash",
]
