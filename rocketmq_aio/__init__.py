"""An asyncio client for Apache RocketMQ, over the brokers' native remoting protocol."""

from rocketmq_aio.codec import Codec, JSONCodec, MsgpackCodec, RawCodec
from rocketmq_aio.config import (
    ClientConfig,
    Credentials,
    LitePullConfig,
    ProducerConfig,
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
    ClientIdNotUnique,
    CommitFailed,
    ConsumerEvent,
    MessageUndecodable,
    MessageUnreadable,
    OffsetCorrected,
    PullFailed,
    QueuesAssigned,
    QueuesRevoked,
    SubscriptionMatchesNothing,
    SubscriptionsDiffer,
)
from rocketmq_aio.consumer.lite_pull import LitePullConsumer
from rocketmq_aio.consumer.offset_file import CorruptOffsetFile, LocalFileOffsetStore
from rocketmq_aio.consumer.offsets import OffsetStore, RemoteOffsetStore
from rocketmq_aio.consumer.pull import PullConsumer, PullResult, PullStatus, RawPull
from rocketmq_aio.consumer.statistics import TopicStatistics
from rocketmq_aio.errors import (
    AuthError,
    BatchError,
    BrokerError,
    BusyError,
    ClosedError,
    CodecError,
    CommitError,
    ConfigError,
    ConnectionLostError,
    InvalidMessageError,
    NameServerUnavailableError,
    NotConnectedError,
    NotRunningError,
    NotSupportedError,
    OffsetIllegalError,
    PayloadError,
    PermissionDeniedError,
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
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.publishing import QueueSelector, select_by_hash

__version__ = "0.1.0"

__all__ = [
    "AllocateAveragely",
    "AllocateAveragelyByCircle",
    "AllocateByConfig",
    "AllocateByMachineRoom",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "AllocateStrategy",
    "AuthError",
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
    "FilterMessageHook",
    "InvalidMessageError",
    "JSONCodec",
    "LitePullConfig",
    "LitePullConsumer",
    "LocalFileOffsetStore",
    "MQClientInstance",
    "MachineRoomResolver",
    "Message",
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
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullFailed",
    "PullResult",
    "PullStatus",
    "QueueSelector",
    "QueuesAssigned",
    "QueuesRevoked",
    "RPCHook",
    "RawCodec",
    "RawPull",
    "RemoteOffsetStore",
    "RequestTimeoutError",
    "RocketMQError",
    "RouteNotFoundError",
    "SendAttempt",
    "SendError",
    "SendResult",
    "SendStatus",
    "SendUnknownError",
    "SubscriptionError",
    "SubscriptionMatchesNothing",
    "SubscriptionsDiffer",
    "TopicStatistics",
    "select_by_hash",
]
