"""Loads the data in protocol/, which the package itself does not import."""

import json
from pathlib import Path
from typing import Any, Final

from rocketmq_aio.protocol.codes import LANGUAGE_CODE
from rocketmq_aio.protocol.command import Command, decode_command
from rocketmq_aio.protocol.frame import FrameDecoder

Json = dict[str, Any]

PROTOCOL: Final = Path(__file__).parents[3] / "protocol"
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024


def load(path: str) -> Json:
    """Return one file of protocol/."""
    document: Json = json.loads((PROTOCOL / path).read_text(encoding="utf-8"))
    return document


def load_all(folder: str) -> dict[str, Json]:
    """Return every file of a folder of protocol/, by its name without the ending."""
    return {
        path.stem: load(f"{folder}/{path.name}")
        for path in sorted((PROTOCOL / folder).glob("*.json"))
    }


CODES: Final = load("codes.json")
COMMON_FIELDS: Final = {field["name"]: field for field in load("common-fields.json")["common"]}
DEFINITIONS: Final = {each["code"]: each for each in load_all("messages").values()}
OPERATIONS: Final = {each["code"]: each for each in load("operations.json")["requests"]}
RECORDED: Final = load_all("frames/recorded")


def split(frame: bytes) -> tuple[int, bytes, bytes]:
    """Return header encoding, header and body of the one frame in *frame*."""
    frames: list[tuple[int, bytes, bytes]] = []
    splitter = FrameDecoder(lambda *parts: frames.append(parts), max_frame_bytes=MAX_FRAME_BYTES)
    splitter.feed(frame)
    (only,) = frames
    return only


def command_in(frame: bytes) -> Command:
    """Return what the one frame in *frame* says."""
    return decode_command(*split(frame))


def said_by_python(frame: bytes) -> bytes:
    """Return a binary frame with this client's language: the codec writes no other."""
    language_at = 10
    return frame[:language_at] + bytes([LANGUAGE_CODE]) + frame[language_at + 1 :]
