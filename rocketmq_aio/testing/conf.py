"""Configuration files of name servers and brokers for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from rocketmq_aio.testing.errors import ClusterError
from rocketmq_aio.testing.ports import HA_OFFSET
from rocketmq_aio.testing.server import BrokerSpec

CLUSTER_NAME: Final = "DefaultCluster"

# A broker with other values would not be found.
RESERVED: Final = frozenset(
    "brokerClusterName brokerId brokerIP1 brokerIP2 brokerName brokerRole controllerAddr "
    "dLegerGroup dLegerPeers dLegerSelfId enableControllerMode enableDLegerCommitLog "
    "haListenPort listenPort namesrvAddr".split()
)

BROKER_DEFAULTS: Final[Mapping[str, str]] = {
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",  # SQL selectors
    "traceTopicEnable": "true",
    "flushDiskType": "ASYNC_FLUSH",
    "timerWheelEnable": "true",  # delays in milliseconds, 5.x
    # A flush copies 38 MB; at the default of 1 s this takes 40 % of a core.  After a kill, delayed
    # messages of the last interval can be delivered twice.
    "timerFlushIntervalMs": "30000",
    # The default maps files of 1 GiB.
    "mappedFileSizeCommitLog": str(128 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "600000",
    "diskMaxUsedSpaceRatio": "95",  # disks of developer machines are often fuller
    # A thread of 5.x spins until the first interval, 10 s by default, has passed.
    "transactionMetricFlushInterval": "500",
    # 5.x records ended half messages in batches, and the thread that does so spins when the
    # interval has passed since the last one.  A batch size of 1 and a long interval avoid that, for
    # few transactions: under load the thread misses wake-ups until the interval has passed.
    "transactionOpMsgMaxSize": "1",
    "transactionOpBatchInterval": "3600000",
    # Brokers reject requests that waited for 200 ms, and all sends after a slow write; machines
    # that run tests are slower than that.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "30000",
    "registerNameServerPeriod": "10000",  # the minimum: sooner known to restarted name servers
    "slaveReadEnable": "true",  # slaves of 5.x serve no reads without it
}

PROXY_DEFAULTS: Final[Mapping[str, object]] = {
    "topicRouteServiceCacheRefreshSeconds": 2,  # by default it knows changes of topics after 20
    "transactionHeartbeatPeriodSecond": 2,  # and brokers know new transaction groups after 20
    "tlsTestModeEnable": True,  # otherwise it needs a certificate
}

LOGBACK: Final = """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${{user.home}}/logs/rocketmqlogs/{name}.log</file>
    <encoder><pattern>%d %p %t %logger - %m%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="file"/></root>
</configuration>
"""


def broker_conf(
    spec: BrokerSpec,
    port: int,
    namesrv: str,
    controller: str = "",
    dledger_ports: Sequence[int] = (),
) -> dict[str, str]:
    """Return the properties of a broker: the defaults, overridden by those of *spec*.

    :param controller: addresses of the controllers, for brokers that have them
    :param dledger_ports: where the replicas elect their master, for brokers that do
    :raises ClusterError: *spec* contains a reserved or malformed property
    """
    for key, value in spec.properties.items():
        if key in RESERVED:
            raise ClusterError(f"broker property {key} is set by the cluster itself")
        if not key.isidentifier() or "\n" in value:
            raise ClusterError(f"not a broker property: {key}={value!r}")
    fixed = {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": spec.broker_name,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",  # where slaves find the replication port of their master
        "listenPort": str(port),
        "haListenPort": str(port + HA_OFFSET),
        "namesrvAddr": namesrv,
    }
    if spec.controlled:
        role = _controlled(spec, controller)
    elif spec.dledger:
        role = _dledger(spec, dledger_ports)
    else:
        role = _role(spec)
    return {**fixed, **role, **BROKER_DEFAULTS, **spec.properties}


def namesrv_conf(port: int) -> dict[str, str]:
    """Return the properties of a name server.

    A slave acts for its master if its broker has ``enableSlaveActingMaster``, too.
    """
    return {"listenPort": str(port), "supportActingMaster": "true"}


def controller_conf(peers: Sequence[int], own: int, store: str) -> dict[str, str]:
    """Return the properties of one controller of a DLedger group.

    :param peers: the ports of all
    :param own: the index of its port
    """
    return {
        "controllerType": "DLedger",
        "controllerDLegerGroup": "controllers",
        "controllerDLegerPeers": _dledger_peers(peers),
        "controllerDLegerSelfId": f"n{own}",
        "controllerStorePath": store,
        "mappedFileSize": str(16 * 1024 * 1024),
        "enableElectUncleanMaster": "false",
        "notifyBrokerRoleChanged": "true",
    }


def _controlled(spec: BrokerSpec, controller: str) -> dict[str, str]:
    """Return the properties of a broker without a role: it gets one from the controller."""
    return {
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "allAckInSyncStateSet": str(spec.sync_replication).lower(),
        "syncBrokerMetadataPeriod": "1000",
        "syncControllerMetadataPeriod": "1000",  # by default it knows a new leader after 10 s
    }


def _dledger(spec: BrokerSpec, ports: Sequence[int]) -> dict[str, str]:
    """Return the properties of a broker without a role: the replicas elect their master."""
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": spec.broker_name,
        "dLegerPeers": _dledger_peers(ports),
        "dLegerSelfId": f"n{spec.broker_id}",
    }


def _dledger_peers(ports: Sequence[int]) -> str:
    return ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))


def _role(spec: BrokerSpec) -> dict[str, str]:
    if spec.broker_id != 0:
        return {"brokerId": str(spec.broker_id), "brokerRole": "SLAVE"}
    if not spec.sync_replication:
        return {"brokerId": "0", "brokerRole": "ASYNC_MASTER"}
    # 5.x waits for as many replicas as this says, the master included, whatever the role.
    return {"brokerId": "0", "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}


def proxy_conf(port: int, namesrv: str) -> dict[str, object]:
    """Return the settings of a proxy in cluster mode, which serves gRPC on the next port."""
    fixed = {
        "rocketMQClusterName": CLUSTER_NAME,
        "proxyMode": "cluster",
        "namesrvAddr": namesrv,
        "localServeAddr": "127.0.0.1",  # the broker address in its routes
        "remotingListenPort": port,
        "grpcServerPort": port + 1,
    }
    return {**fixed, **PROXY_DEFAULTS}


def properties_text(properties: Mapping[str, str]) -> str:
    # Java reads Latin-1; it has the escapes of JSON, for other characters, too.
    return "".join(f"{key}={json.dumps(value)[1:-1]}\n" for key, value in properties.items())
