"""Routes as name servers send them."""

from __future__ import annotations

from rocketmq_aio.protocol.bodies import (
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)

READ, WRITE = 4, 2
A, B = "127.0.0.1:10911", "127.0.0.1:10921"


def broker(name: str = "broker-a", *, acting: bool = False, **addresses: str) -> BrokerData:
    """A broker with ``master=`` and ``replica=`` addresses.

    :param acting: whether a slave may act for the master
    """
    ids = {"master": 0, "replica": 1}
    return BrokerData(
        broker_name=name,
        broker_addrs={ids[kind]: text for kind, text in addresses.items()},
        enable_acting_master=acting,
    )


def queues(
    name: str = "broker-a", read: int = 2, write: int = 2, perm: int = READ | WRITE
) -> QueueData:
    return QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def static(owner_of: dict[int, str], total: int, epoch: int = 1) -> TopicRouteData:
    """The route of a static topic on broker-a and broker-b: logical queues and their owners."""
    names = {"broker-a": A, "broker-b": B}
    mappings = {
        name: TopicQueueMappingInfo(
            topic="orders",
            scope="__global__",
            total_queues=total,
            bname=name,
            epoch=epoch,
            curr_id_map={number: number for number, owner in owner_of.items() if owner == name},
        )
        for name in names
    }
    return TopicRouteData(
        queue_datas=[queues(name) for name in names],
        broker_datas=[broker(name, master=address) for name, address in names.items()],
        topic_queue_mapping_by_broker=mappings,
    )


def route(*datas: QueueData | BrokerData, order: str | None = None) -> TopicRouteData:
    return TopicRouteData(
        queue_datas=[each for each in datas if isinstance(each, QueueData)],
        broker_datas=[each for each in datas if isinstance(each, BrokerData)],
        order_topic_conf=order,
    )
