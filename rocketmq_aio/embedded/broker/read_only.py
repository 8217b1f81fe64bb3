"""Responses of brokers that do not accept writes: replicas, and masters with a full disk."""

from __future__ import annotations

from typing import Final

from rocketmq_aio.embedded.broker.pop import NOTHING_POPPED
from rocketmq_aio.embedded.broker.store import TRACE_FIELDS
from rocketmq_aio.embedded.faults import KINDS
from rocketmq_aio.embedded.responses import ErrorResponse
from rocketmq_aio.embedded.server import Version
from rocketmq_aio.protocol.codes import TRANSACTION_COMMIT, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command

NOT_AVAILABLE: Final = (
    "service not available now. It may be caused by one of the following reasons: "
    "the broker's disk is full [CL:  0.95 CQ:  0.95 INDEX:  0.95], messages are put to the slave, "
    "message store has been shut down, etc."
)
BUSY: Final = "[REJECTREQUEST]system busy, start flow control for a while"


def check_writable(command: Command, version: Version, *, is_master: bool) -> None:
    """Raise the ErrorResponse of a broker that stores no messages, if *command* is a write."""
    code = command.code
    is_send_back = code == RequestCode.CONSUMER_SEND_MSG_BACK
    if not is_master and version.is_5 and (is_send_back or code in KINDS["send"]):
        raise ErrorResponse(BUSY, ResponseCode.SYSTEM_BUSY)
    if code in KINDS["send"]:
        raise ErrorResponse(NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE, TRACE_FIELDS)
    if is_send_back:
        raise ErrorResponse("SERVICE_NOT_AVAILABLE")
    if code == RequestCode.END_TRANSACTION:
        if not is_master:
            raise ErrorResponse("not set any response code", ResponseCode.SLAVE_NOT_AVAILABLE)
        if command.ext_fields().get("commitOrRollback") == str(TRANSACTION_COMMIT):
            raise ErrorResponse("Service not available now.", ResponseCode.SERVICE_NOT_AVAILABLE)
    if code == RequestCode.POP_MESSAGE and version.is_5:  # it would have to store checkpoints
        raise ErrorResponse("NO_MESSAGE_IN_QUEUE", ResponseCode.POLLING_TIMEOUT, NOTHING_POPPED)
