"""ReplyProcessor: pushes replies to the requester and stores them."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import asdict

from rocketmq_aio.embedded.broker.clients import ClientProcessor
from rocketmq_aio.embedded.broker.forwarding import FORWARD_SECONDS, Push
from rocketmq_aio.embedded.broker.send import SendProcessor
from rocketmq_aio.embedded.broker.state import BrokerState
from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.handlers import handles
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.model.properties import REPLY_TO_CLIENT, encode_properties, parse_properties
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests.from_broker import PushReplyMessage
from rocketmq_aio.protocol.requests.send import SendReplyMessage


@dataclass(slots=True)
class ReplyProcessor:
    """Pushes replies to the connection of the requester's producer heartbeat."""

    _state: BrokerState
    _members: ClientProcessor
    _sends: SendProcessor
    _push: Push

    @handles(RequestCode.SEND_REPLY_MESSAGE_V2)
    async def send(self, command: Command, connection: ServerConnection) -> Response:
        header = read_header(command, SendReplyMessage)
        fault = await self._push_reply(header, command, connection)
        response = self._sends.send(command, connection)
        if not fault or response.code != ResponseCode.SUCCESS:
            return response
        return Response(ResponseCode.SYSTEM_ERROR, ext=response.ext, remark=fault)

    async def _push_reply(
        self, header: SendReplyMessage, command: Command, connection: ServerConnection
    ) -> str | None:
        """Return why the push failed; None: it succeeded."""
        properties = parse_properties((header.properties or "").encode())
        client = properties.get(REPLY_TO_CLIENT)
        if client is None:
            return "reply message properties[REPLY_TO_CLIENT] is null"
        number = self._connection_of(client)
        if number is None:
            return f"push reply message fail, channel of <{client}> not found."
        ext = to_ext_fields(self._push_header(header, properties, connection))
        pushed = Command(PushReplyMessage.code, 0, ext=ext, body=command.body)
        try:
            answer = await self._push(pushed, number, FORWARD_SECONDS)
        except (TimeoutError, ConnectionError):
            return "push reply message to client fail"
        return None if answer is not None and not answer.code else "push reply message fail"

    def _connection_of(self, client: str) -> int | None:
        groups = self._members.producers.values()
        found = (n for members in groups for n, each in members.items() if each.client_id == client)
        return next(found, None)

    def _push_header(
        self, header: SendReplyMessage, properties: dict[str, str], connection: ServerConnection
    ) -> PushReplyMessage:
        now = self._state.clock.now_ms()
        host, port = connection.client_address
        store_host, store_port = self._state.store.host
        names = PushReplyMessage.__struct_fields__
        sent = {name: value for name, value in asdict(header).items() if name in names}
        changed = {
            "properties": encode_properties(properties | {"PUSH_REPLY_TIME": str(now)}),
            "unit_mode": bool(header.unit_mode),
            "born_host": f"{host}:{port}",
            "store_host": f"{store_host}:{store_port}",
            "store_timestamp": now,
        }
        return PushReplyMessage(**sent | changed)
