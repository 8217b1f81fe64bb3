"""Routes as name servers send them."""

from __future__ import annotations

from rocketmq_aio.protocol.bodies import BrokerData, QueueData, TopicRouteData

READ, WRITE = 4, 2
A, B = "127.0.0.1:10911", "127.0.0.1:10921"


def broker(name: str = "broker-a", **addresses: str) -> BrokerData:
    """A broker with ``master=`` and ``replica=`` addresses."""
    ids = {"master": 0, "replica": 1}
    return BrokerData(
        broker_name=name, broker_addrs={ids[kind]: text for kind, text in addresses.items()}
    )


def queues(
    name: str = "broker-a", read: int = 2, write: int = 2, perm: int = READ | WRITE
) -> QueueData:
    return QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def route(*datas: QueueData | BrokerData, order: str | None = None) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=[each for each in datas if isinstance(each, QueueData)],
        broker_datas=[each for each in datas if isinstance(each, BrokerData)],
        order_topic_conf=order,
    )
