"""The configuration files of a name server and a broker made for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rocketmq_aio.testing.errors import ClusterError

CLUSTER_NAME: Final = "DefaultCluster"

# What a broker needs to be found; a test that changed them would wait for nothing.
RESERVED: Final = frozenset(
    {"brokerClusterName", "brokerName", "brokerIP1", "listenPort", "namesrvAddr"}
)

BROKER_DEFAULTS: Final[Mapping[str, str]] = {
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",  # SQL selectors
    "traceTopicEnable": "true",
    "flushDiskType": "ASYNC_FLUSH",
    "timerWheelEnable": "true",  # delays by the millisecond, 5.x
    # Files of 1 GiB would be mapped otherwise, one after the other.
    "mappedFileSizeCommitLog": str(128 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "600000",
    "diskMaxUsedSpaceRatio": "95",  # a laptop's disk is fuller than a server's
    # Until it is over for the first time, after 10 s, a thread of 5.x does nothing but ask for it.
    "transactionMetricFlushInterval": "500",
    # 5.x notes in batches which half messages are decided; between two batches a thread of it does
    # nothing but ask for the next, from the first half message on.  So each is noted at once.
    "transactionOpMsgMaxSize": "1",
    "transactionOpBatchInterval": "3600000",
    # Brokers refuse what they did not come to for 200 ms, and all sends after a slow write: a
    # machine that runs tests is slower than that.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "30000",
    "registerNameServerPeriod": "10000",  # the least: a restarted name server learns sooner
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


def broker_conf(name: str, port: int, namesrv: str, changes: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of the master *name*: ours, then what the caller *changes*.

    :raises ClusterError: *changes* touches what other parts rely on, or is not a property
    """
    for key, value in changes.items():
        if key in RESERVED:
            raise ClusterError(f"broker property {key} is set by the cluster itself")
        if not key.isidentifier() or "\n" in value:
            raise ClusterError(f"not a broker property: {key}={value!r}")
    fixed = {
        "brokerClusterName": CLUSTER_NAME,
        "brokerName": name,
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "namesrvAddr": namesrv,
    }
    return {**fixed, **BROKER_DEFAULTS, **changes}


def properties_text(properties: Mapping[str, str]) -> str:
    # A backslash starts an escape in Java's property files.
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())
