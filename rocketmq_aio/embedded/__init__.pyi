"""The public names; made by `tools/make_stub.py`."""

# ruff: noqa: I001
# fmt: off
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker as EmbeddedBroker
from rocketmq_aio.embedded.clock import Clock as Clock
from rocketmq_aio.embedded.cluster import EmbeddedCluster as EmbeddedCluster
from rocketmq_aio.embedded.faults import Fault as Fault
from rocketmq_aio.embedded.faults import Faults as Faults
from rocketmq_aio.embedded.faults import HeldResponses as HeldResponses
from rocketmq_aio.embedded.name_server import EmbeddedNameServer as EmbeddedNameServer
from rocketmq_aio.embedded.responses import Close as Close
from rocketmq_aio.embedded.responses import Raw as Raw
from rocketmq_aio.embedded.responses import Response as Response
