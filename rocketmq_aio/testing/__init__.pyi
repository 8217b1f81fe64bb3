"""The public names; made by `tools/make_stub.py`."""

# ruff: noqa: I001
# fmt: off
from rocketmq_aio.testing.cluster import Cluster as Cluster
from rocketmq_aio.testing.errors import ClusterError as ClusterError
from rocketmq_aio.testing.errors import NotOwnedError as NotOwnedError
from rocketmq_aio.testing.errors import NotSupportedError as NotSupportedError
from rocketmq_aio.testing.errors import StartError as StartError
from rocketmq_aio.testing.errors import UnavailableError as UnavailableError
from rocketmq_aio.testing.messages import received_message as received_message
from rocketmq_aio.testing.nodes import Broker as Broker
from rocketmq_aio.testing.nodes import ControlledBroker as ControlledBroker
from rocketmq_aio.testing.nodes import Controller as Controller
from rocketmq_aio.testing.nodes import NameServer as NameServer
from rocketmq_aio.testing.nodes import Proxy as Proxy
from rocketmq_aio.testing.nodes import Slave as Slave
from rocketmq_aio.testing.security import Account as Account
from rocketmq_aio.testing.security import ServerTLS as ServerTLS
