"""Blocking requests to name servers and brokers, for readiness checks and test set-up.

Each request uses a new connection and a JSON header.  Independent of the client, so that
the client under test does not judge the servers.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from rocketmq_aio.config.client import Credentials
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.remoting.acl import sign
from rocketmq_aio.testing.errors import ClusterError

MASTER_ID: Final = "0"
MALFORMED: Final = (ValueError, LookupError, TypeError, AttributeError)  # what parsers raise
MAX_FRAME: Final = 16 * 1024 * 1024
POLL_SECONDS: Final = 0.1

_WORDS: Final = struct.Struct(">II")
_BARE_KEY: Final = re.compile(r"([{,])(\d+):")


class ProbeError(ClusterError):
    """The server responded with an error or an unexpected result."""


class ProbeTimeoutError(ClusterError, TimeoutError):
    """A check did not succeed in time; the cause is its last error."""


class Access(NamedTuple):
    """Credentials and TLS context for secured servers."""

    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None


OPEN: Final = Access()


class Reply(NamedTuple):
    code: int
    remark: str
    ext_fields: Mapping[str, str]
    body: bytes


def request(
    address: str,
    code: int,
    fields: Mapping[str, object] | None = None,
    body: bytes = b"",
    access: Access = OPEN,
    *,
    timeout_seconds: float = 5.0,
) -> Reply:
    """Send one request to *address* and return its response, whatever the code.

    :raises OSError: no complete response within *timeout_seconds*, or a malformed one
    """
    host, _, port = address.rpartition(":")
    frame = _encode(code, fields or {}, body, access.credentials)
    with _connected(host.strip("[]"), int(port), timeout_seconds, access.tls) as connection:
        connection.sendall(frame)
        length, word = _WORDS.unpack(_read(connection, _WORDS.size))
        if length > MAX_FRAME or word >> 24:
            raise ConnectionError(f"{address} does not speak the remoting protocol")
        rest = _read(connection, length - 4)
    try:
        header = json.loads(rest[:word])
        remark, ext_fields = header.get("remark") or "", header.get("extFields") or {}
        return Reply(int(header["code"]), str(remark), dict(ext_fields), rest[word:])
    except MALFORMED as error:
        raise ConnectionError(f"{address} sent a malformed response: {error!r}") from error


def ask(
    address: str,
    code: int,
    fields: Mapping[str, object] | None = None,
    body: bytes = b"",
    access: Access = OPEN,
) -> bytes:
    """Return the body of a successful response.

    :raises ProbeError: the response code is not 0; the message contains the remark
    """
    reply = request(address, code, fields, body, access)
    if reply.code != ResponseCode.SUCCESS:
        raise ProbeError(f"{address} answers request {code} with {reply.code}: {reply.remark}")
    return reply.body


def masters(namesrv: str, topic: str, access: Access = OPEN) -> dict[str, str]:
    """Return the masters that *namesrv* knows for *topic*: address by broker name."""
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    reply = request(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, access=access)
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        return {}
    if reply.code != ResponseCode.SUCCESS:
        raise ProbeError(f"{namesrv} has no route of {topic}: {reply.code} {reply.remark}")
    return _masters(_json(reply.body)["brokerDatas"])


def cluster_masters(namesrv: str) -> dict[str, str]:
    """Return all masters that *namesrv* knows: address by broker name."""
    return _masters(_cluster(namesrv, OPEN))


def members(namesrv: str, broker_name: str, access: Access = OPEN) -> dict[int, str]:
    """Return master and slaves of *broker_name* that *namesrv* knows: address by broker id."""
    for data in _cluster(namesrv, access):
        if data["brokerName"] == broker_name:
            return {int(number): address for number, address in data["brokerAddrs"].items()}
    return {}


def leader(controllers: str) -> str:
    """Return the address of the leader, as the first of *controllers* that responds knows it.

    :param controllers: addresses, joined by semicolons
    :raises ProbeError: there is none now
    """
    for address in controllers.split(";"):
        with suppress(OSError):
            reply = request(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            if found := reply.ext_fields.get("controllerLeaderAddress"):
                return found
    raise ProbeError(f"no leader of the controllers {controllers}")


def in_sync(controllers: str, broker_name: str) -> set[str]:
    """Return the addresses of the replicas that the leader of *controllers* would make master."""
    body = json.dumps([broker_name]).encode()
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    found = _json(ask(leader(controllers), code, body=body))["replicasInfoTable"]
    replicas = (found.get(broker_name) or {}).get("inSyncReplicas", ())
    return {each["brokerAddress"] for each in replicas}


def queue_ends(broker: str, topic: str, queues: int, access: Access = OPEN) -> list[int]:
    """Return the offset behind the last message of each queue of *topic*."""
    found = []
    for number in range(queues):
        reply = request(
            broker, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": number}, access=access
        )
        if reply.code != ResponseCode.SUCCESS:
            raise ProbeError(f"{broker}: {reply.code} {reply.remark}")
        found.append(int(reply.ext_fields["offset"]))
    return found


def queues(broker: str, topic: str, access: Access = OPEN) -> int:
    """Return the number of queues to read of *topic* at *broker*.

    :raises ProbeError: it does not have the topic
    """
    topics = _json(ask(broker, RequestCode.GET_ALL_TOPIC_CONFIG, access=access))["topicConfigTable"]
    if topic not in topics:
        raise ProbeError(f"{broker} does not have {topic}")
    return int(topics[topic]["readQueueNums"])


def _cluster(namesrv: str, access: Access) -> list[dict[str, Any]]:
    body = _json(ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, access=access))
    return list(body["brokerAddrTable"].values())


def wait_until(check: Callable[[], object], *, seconds: float, what: str) -> None:
    """Call *check* until it raises neither OSError nor ProbeError.

    :raises ProbeTimeoutError: after *seconds*
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            check()
            return
        except (OSError, ProbeError) as error:
            if time.monotonic() >= deadline:
                raise ProbeTimeoutError(f"{what} after {seconds:g} s: {error}") from error
        time.sleep(POLL_SECONDS)


def _connected(
    host: str, port: int, seconds: float, context: ssl.SSLContext | None
) -> socket.socket:
    connection = socket.create_connection((host, port), seconds)
    if context is None:
        return connection
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except BaseException:
        connection.close()
        raise


def _encode(
    code: int, fields: Mapping[str, object], body: bytes, credentials: Credentials | None
) -> bytes:
    ext_fields = {name: str(value) for name, value in fields.items()}
    if credentials is not None:
        sign(ext_fields, body, credentials)
    header = {
        "code": code,
        "language": "PYTHON",
        "version": 0,
        "opaque": 1,
        "flag": 0,
        "extFields": ext_fields,
    }
    text = json.dumps(header).encode()
    return _WORDS.pack(4 + len(text) + len(body), len(text)) + text + body


def _read(connection: socket.socket, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = connection.recv(size - len(chunks))
        if not chunk:
            raise ConnectionError(f"closed after {len(chunks)} of {size} bytes")
        chunks += chunk
    return bytes(chunks)


def _json(body: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Parse JSON of brokers before 5.0, which can have bare numbers as keys.

    :raises ProbeError: it is no JSON
    """
    text = body.decode(errors="replace")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        try:
            return json.loads(_BARE_KEY.sub(r'\1"\2":', text))
        except json.JSONDecodeError as error:
            raise ProbeError(f"malformed body: {error}") from error


def _masters(broker_datas: Iterable[dict[str, Any]]) -> dict[str, str]:
    return {
        data["brokerName"]: data["brokerAddrs"][MASTER_ID]
        for data in broker_datas
        if MASTER_ID in data["brokerAddrs"]
    }
