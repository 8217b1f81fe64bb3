"""Request codes of servers, the official admin tool and clients in other languages."""

from __future__ import annotations

from enum import IntEnum


class OtherCode(IntEnum):
    """Code of a request that this client does not send."""

    SEND_MESSAGE = 10
    REGISTER_BROKER = 103
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
