"""The public names, each with its module: what type checkers read, and what `__init__.py` loads."""

from rocketmq_aio.admin.client import AdminClient as AdminClient
from rocketmq_aio.admin.results import BrokerInfo as BrokerInfo
from rocketmq_aio.admin.results import BrokerRuntime as BrokerRuntime
from rocketmq_aio.admin.results import ClientConnection as ClientConnection
from rocketmq_aio.admin.results import ClusterInfo as ClusterInfo
from rocketmq_aio.admin.results import GroupConfig as GroupConfig
from rocketmq_aio.admin.results import GroupConnections as GroupConnections
from rocketmq_aio.admin.results import GroupProgress as GroupProgress
from rocketmq_aio.admin.results import OffsetReset as OffsetReset
from rocketmq_aio.admin.results import QueueCount as QueueCount
from rocketmq_aio.admin.results import QueueProgress as QueueProgress
from rocketmq_aio.admin.results import QueueStats as QueueStats
from rocketmq_aio.admin.results import SubscriptionInfo as SubscriptionInfo
from rocketmq_aio.admin.results import TopicConfig as TopicConfig
from rocketmq_aio.admin.results import TopicRouteInfo as TopicRouteInfo
from rocketmq_aio.admin.results import TopicStats as TopicStats
from rocketmq_aio.admin.results import describe_message as describe_message
from rocketmq_aio.config.client import ClientConfig as ClientConfig
from rocketmq_aio.config.client import ClientSettings as ClientSettings
from rocketmq_aio.config.client import Credentials as Credentials
from rocketmq_aio.config.client import HeaderEncoding as HeaderEncoding
from rocketmq_aio.config.consumer import AllocateStrategy as AllocateStrategy
from rocketmq_aio.config.consumer import LitePullConfig as LitePullConfig
from rocketmq_aio.config.consumer import OffsetPolicy as OffsetPolicy
from rocketmq_aio.config.consumer import OffsetStore as OffsetStore
from rocketmq_aio.config.consumer import PopConfig as PopConfig
from rocketmq_aio.config.consumer import PushConfig as PushConfig
from rocketmq_aio.config.consumer import StartFrom as StartFrom
from rocketmq_aio.config.consumer import UndecodablePolicy as UndecodablePolicy
from rocketmq_aio.config.consumer import UnreadablePolicy as UnreadablePolicy
from rocketmq_aio.config.producer import AutoBatch as AutoBatch
from rocketmq_aio.config.producer import Compression as Compression
from rocketmq_aio.config.producer import ProducerConfig as ProducerConfig
from rocketmq_aio.consumer.common.events import AckFailed as AckFailed
from rocketmq_aio.consumer.common.events import ClientIdNotUnique as ClientIdNotUnique
from rocketmq_aio.consumer.common.events import CommitFailed as CommitFailed
from rocketmq_aio.consumer.common.events import ConsumerEvent as ConsumerEvent
from rocketmq_aio.consumer.common.events import CorruptOffsetFile as CorruptOffsetFile
from rocketmq_aio.consumer.common.events import HandlerStuck as HandlerStuck
from rocketmq_aio.consumer.common.events import LeaseLost as LeaseLost
from rocketmq_aio.consumer.common.events import MessageDeadLettered as MessageDeadLettered
from rocketmq_aio.consumer.common.events import MessageDropped as MessageDropped
from rocketmq_aio.consumer.common.events import MessageUndecodable as MessageUndecodable
from rocketmq_aio.consumer.common.events import MessageUnreadable as MessageUnreadable
from rocketmq_aio.consumer.common.events import OffsetCorrected as OffsetCorrected
from rocketmq_aio.consumer.common.events import PullFailed as PullFailed
from rocketmq_aio.consumer.common.events import QueueHeld as QueueHeld
from rocketmq_aio.consumer.common.events import QueuesAssigned as QueuesAssigned
from rocketmq_aio.consumer.common.events import QueuesRevoked as QueuesRevoked
from rocketmq_aio.consumer.common.events import (
    SubscriptionMatchesNothing as SubscriptionMatchesNothing,
)
from rocketmq_aio.consumer.common.events import SubscriptionsDiffer as SubscriptionsDiffer
from rocketmq_aio.consumer.common.events import TopicFound as TopicFound
from rocketmq_aio.consumer.common.events import TopicMissing as TopicMissing
from rocketmq_aio.consumer.common.listeners import AssignmentListener as AssignmentListener
from rocketmq_aio.consumer.common.listeners import TopicQueuesListener as TopicQueuesListener
from rocketmq_aio.consumer.common.statistics import TopicStatistics as TopicStatistics
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer as LitePullConsumer
from rocketmq_aio.consumer.offsets.local_file import LocalFileOffsetStore as LocalFileOffsetStore
from rocketmq_aio.consumer.offsets.store import RemoteOffsetStore as RemoteOffsetStore
from rocketmq_aio.consumer.pop.consumer import PopConsumer as PopConsumer
from rocketmq_aio.consumer.pop.message import PoppedMessage as PoppedMessage
from rocketmq_aio.consumer.pull.consumer import PullConsumer as PullConsumer
from rocketmq_aio.consumer.pull.result import PullResult as PullResult
from rocketmq_aio.consumer.pull.result import PullStatus as PullStatus
from rocketmq_aio.consumer.pull.result import RawPull as RawPull
from rocketmq_aio.consumer.push.consumer import PushConsumer as PushConsumer
from rocketmq_aio.consumer.push.handlers import BatchContext as BatchContext
from rocketmq_aio.consumer.push.handlers import BatchHandler as BatchHandler
from rocketmq_aio.consumer.push.handlers import MessageHandler as MessageHandler
from rocketmq_aio.consumer.push.handlers import RetryLater as RetryLater
from rocketmq_aio.consumer.push.handlers import SuspendQueue as SuspendQueue
from rocketmq_aio.consumer.rebalance.strategies.averagely import (
    AllocateAveragely as AllocateAveragely,
)
from rocketmq_aio.consumer.rebalance.strategies.averagely import (
    AllocateAveragelyByCircle as AllocateAveragelyByCircle,
)
from rocketmq_aio.consumer.rebalance.strategies.config import AllocateByConfig as AllocateByConfig
from rocketmq_aio.consumer.rebalance.strategies.consistent_hash import (
    AllocateConsistentHash as AllocateConsistentHash,
)
from rocketmq_aio.consumer.rebalance.strategies.machine_room import (
    AllocateByMachineRoom as AllocateByMachineRoom,
)
from rocketmq_aio.consumer.rebalance.strategies.machine_room import (
    AllocateMachineRoomNearby as AllocateMachineRoomNearby,
)
from rocketmq_aio.consumer.rebalance.strategies.machine_room import (
    MachineRoomResolver as MachineRoomResolver,
)
from rocketmq_aio.errors import AckError as AckError
from rocketmq_aio.errors import AdminError as AdminError
from rocketmq_aio.errors import AuthError as AuthError
from rocketmq_aio.errors import BackpressureError as BackpressureError
from rocketmq_aio.errors import BatchError as BatchError
from rocketmq_aio.errors import BrokerError as BrokerError
from rocketmq_aio.errors import BusyError as BusyError
from rocketmq_aio.errors import ClosedError as ClosedError
from rocketmq_aio.errors import CodecError as CodecError
from rocketmq_aio.errors import CommitError as CommitError
from rocketmq_aio.errors import ConfigError as ConfigError
from rocketmq_aio.errors import ConnectionLostError as ConnectionLostError
from rocketmq_aio.errors import HalfMessageError as HalfMessageError
from rocketmq_aio.errors import InvalidMessageError as InvalidMessageError
from rocketmq_aio.errors import MessageNotFoundError as MessageNotFoundError
from rocketmq_aio.errors import NameServerUnavailableError as NameServerUnavailableError
from rocketmq_aio.errors import NotConnectedError as NotConnectedError
from rocketmq_aio.errors import NotRunningError as NotRunningError
from rocketmq_aio.errors import NotSupportedError as NotSupportedError
from rocketmq_aio.errors import OffsetIllegalError as OffsetIllegalError
from rocketmq_aio.errors import PayloadError as PayloadError
from rocketmq_aio.errors import PermissionDeniedError as PermissionDeniedError
from rocketmq_aio.errors import ReceiptError as ReceiptError
from rocketmq_aio.errors import ReplyTimeoutError as ReplyTimeoutError
from rocketmq_aio.errors import RequestTimeoutError as RequestTimeoutError
from rocketmq_aio.errors import RocketMQError as RocketMQError
from rocketmq_aio.errors import RouteNotFoundError as RouteNotFoundError
from rocketmq_aio.errors import SendAttempt as SendAttempt
from rocketmq_aio.errors import SendError as SendError
from rocketmq_aio.errors import SendUnknownError as SendUnknownError
from rocketmq_aio.errors import SubscriptionError as SubscriptionError
from rocketmq_aio.errors import UnreadableMessagesError as UnreadableMessagesError
from rocketmq_aio.hooks import CheckForbiddenHook as CheckForbiddenHook
from rocketmq_aio.hooks import ConsumeContext as ConsumeContext
from rocketmq_aio.hooks import ConsumeHook as ConsumeHook
from rocketmq_aio.hooks import EndTransactionContext as EndTransactionContext
from rocketmq_aio.hooks import EndTransactionHook as EndTransactionHook
from rocketmq_aio.hooks import FilterMessageHook as FilterMessageHook
from rocketmq_aio.hooks import RPCHook as RPCHook
from rocketmq_aio.hooks import SendContext as SendContext
from rocketmq_aio.hooks import SendHook as SendHook
from rocketmq_aio.instance.instance import MQClientInstance as MQClientInstance
from rocketmq_aio.model.codec import Codec as Codec
from rocketmq_aio.model.codec import JSONCodec as JSONCodec
from rocketmq_aio.model.codec import MsgpackCodec as MsgpackCodec
from rocketmq_aio.model.codec import RawCodec as RawCodec
from rocketmq_aio.model.message import Message as Message
from rocketmq_aio.model.message import MessageExt as MessageExt
from rocketmq_aio.model.values import MessageModel as MessageModel
from rocketmq_aio.model.values import MessageQueue as MessageQueue
from rocketmq_aio.model.values import MessageSelector as MessageSelector
from rocketmq_aio.model.values import SendResult as SendResult
from rocketmq_aio.model.values import SendStatus as SendStatus
from rocketmq_aio.model.values import TransactionState as TransactionState
from rocketmq_aio.producer.batching.pre_encoded import Encoded as Encoded
from rocketmq_aio.producer.producer import Producer as Producer
from rocketmq_aio.producer.queue_selectors import SelectByMachineRoom as SelectByMachineRoom
from rocketmq_aio.producer.queue_selectors import SelectByRandom as SelectByRandom
from rocketmq_aio.producer.queue_selectors import select_by_hash as select_by_hash
from rocketmq_aio.producer.topic_publish_info import QueueSelector as QueueSelector
from rocketmq_aio.producer.transaction.checks import CheckFunction as CheckFunction
from rocketmq_aio.producer.transaction.producer import TransactionProducer as TransactionProducer
from rocketmq_aio.producer.transaction.transaction import Transaction as Transaction
from rocketmq_aio.producer.transaction.transaction import TransactionResult as TransactionResult
from rocketmq_aio.trace.message_trace import MessageTrace as MessageTrace

__version__: str
