"""Selects the frames of protocol/frames from a folder of collected facts."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from readable_json import Json, file_name, read, write

# Admin tools also send these codes, to the broker that forwards them.
FROM_BROKERS: Final = (39, 40, 220, 221, 307, 309, 326)

GOLDEN_BODIES: Final = (
    "HeartbeatData",
    "HeartbeatData_fingerprint_input",
    "SubscriptionData_SQL92",
    "TopicRouteData_default",
    "TopicRouteData_standard",
    "TopicRouteData_static_default",
    "LockBatchRequestBody",
    "LockBatchResponseBody",
    "UnlockBatchRequestBody",
    "GetConsumerListByGroupResponseBody",
    "ConsumerConnection",
    "QueryAssignmentRequestBody",
    "QueryAssignmentResponseBody",
    "ConsumerRunningInfo",
    "ConsumeMessageDirectlyResult",
    "ResetOffsetBody",
    "ResetOffsetBodyForC",
    "GetConsumerStatusBody",
    "CheckClientRequestBody",
    "BatchAckMessageRequestBody",
    "ClusterInfo",
    "ConsumeStats",
    "TopicStatsTable",
    "ConsumerOffsetSerializeWrapper",
    "QueryCorrectionOffsetBody",
)


# --- frames/golden ---------------------------------------------------------------------------


def golden_frame(frame: Json) -> Json:
    says = {key: frame[key] for key in ("code", "language", "version", "opaque", "flag", "remark")}
    says["ext"] = frame["extFields"] or {}
    says["body_hex"] = frame["body_hex"] or ""
    return {"serialize": frame["serialize"], "hex": frame["frame_hex"], "says": says}


def golden_texts(golden: Json) -> Json:
    return {
        "written_by": golden["_about"]["origin"],
        "properties": golden["properties"],
        "message_ids": golden["message_ids"],
        "uniq_key": golden["uniq_key"],
        "body_crc": golden["body_crc"],
        "string_hash_codes": golden["java_string_hashcodes"],
        "batch": golden["batch"],
        "receipts": golden["pop_extra_info"],
    }


def write_golden(facts: Path, target: Path) -> None:
    golden = read(facts / "golden_vectors.json")
    origin = {"written_by": "Java classes of 5.3.3"}
    golden["_about"]["origin"] = origin["written_by"]
    folder = target / "frames" / "golden"
    bodies = {name: golden["json_bodies"][name] for name in GOLDEN_BODIES}
    fingerprint = int(golden["json_bodies"]["HeartbeatData_fingerprint"])
    standard = [name for name in GOLDEN_BODIES if golden["json_bodies_standard"][name]]
    write(folder / "frames.json", {**origin, "frames": [golden_frame(f) for f in golden["frames"]]})
    write(folder / "records.json", {**origin, "records": golden["stored_messages"]})
    write(folder / "texts.json", golden_texts(golden))
    write(folder / "signatures.json", {**origin, "signatures": golden["acl_signatures"]})
    write(
        folder / "bodies.json",
        {
            **origin,
            "standard_json": standard,
            "heartbeat_fingerprint": fingerprint,
            "bodies": bodies,
        },
    )


# --- frames/recorded -------------------------------------------------------------------------


def writers(pair: Json, version: str) -> tuple[str, str]:
    """Sender of the request and of the response."""
    parts = {"client": "Java client", "broker": "broker", "name server": "name server"}
    asking, answering = (parts[word] for word in pair["direction"].split(" -> "))
    return f"{asking} {version}", f"{answering} {version}"


def body_says(half: Json) -> Json:
    says: Json = {"body_length": half["body_length"]}
    if "body_text" in half:
        says["body_json"] = half["body_text"]
    if "body_messages" in half:
        says["body_message_count"] = half["body_message_count"]
        says["body_messages"] = half["body_messages"]
    return says


def repeated_keys(frame: bytes, serialize: str) -> list[str]:
    """Names that occur more than once in a binary header."""
    if serialize == "JSON":
        return []
    names: list[str] = []
    at = 8 + 17 + int.from_bytes(frame[21:25], "big")
    end = at + 4 + int.from_bytes(frame[at : at + 4], "big")
    at += 4
    while at < end:
        value_at = at + 2 + int.from_bytes(frame[at : at + 2], "big")
        names.append(frame[at + 2 : value_at].decode())
        at = value_at + 4 + int.from_bytes(frame[value_at : value_at + 4], "big")
    return sorted({name for name in names if names.count(name) > 1})


def half_entry(half: Json, serialize: str, writer: str) -> Json:
    header = half["header"]
    keys = ("code", "language", "version", "opaque", "flag", "remark")
    says = {key: header[key] for key in keys if header.get(key) is not None}
    says["ext"] = header.get("extFields") or {}
    if repeated := repeated_keys(bytes.fromhex(half["frame_hex"]), serialize):
        says["repeated_keys"] = repeated
    return {
        "written_by": writer,
        "serialize": serialize,
        "hex": half["frame_hex"],
        "says": {**says, **body_says(half)},
    }


def secret_of(pair: Json) -> str | None:
    """Test key of the signature: public, created for the recording."""
    if "wrong secret" in pair["note"] or "unknown user" in pair["note"]:
        return "wrongsecret"
    ext = pair["request"]["header"].get("extFields") or {}
    secrets = {"admin": "adminsecret", "admin12345": "adminsecret", "u2": "p2secretnew"}
    return secrets[ext["AccessKey"]] if "Signature" in ext else None


def pair_entry(pair: Json, version: str) -> Json:
    asking, answering = writers(pair, version)
    entry = {"version": version, "direction": pair["direction"].replace("->", "to")}
    entry |= {"doing": pair["note"], "settings": pair["run"], "variant": pair["variant"]}
    if secret := secret_of(pair):
        entry["secret"] = secret
    entry["request"] = half_entry(pair["request"], pair["serialize_type"], asking)
    if response := pair.get("response"):
        entry["response"] = half_entry(response, response["serialize_type"], answering)
    return entry


def traits(pair: Json, version: str) -> Iterator[tuple[Any, ...]]:
    """Traits of a pair; the selected pairs cover every trait."""
    request, response = pair["request"], pair.get("response") or {}
    ext = request["header"].get("extFields") or {}
    answer = response.get("header", {})
    kinds = (pair["serialize_type"], response.get("serialize_type"))
    yield (version, "direction", pair["direction"], kinds)
    yield (version, "signed", "Signature" in ext, "SecurityToken" in ext, pair["serialize_type"])
    yield (version, "variant", pair["variant"].replace(", signed", "").replace("signed", ""))
    yield (version, "code", answer.get("code"))
    yield (version, "keys", frozenset(ext))
    yield (version, "answer keys", frozenset(answer.get("extFields") or {}))
    yield (version, "messages", min(response.get("body_message_count", 0), 2))


def usable(pair: Json) -> bool:
    """Whole frames only, without those of admin tools and those without new traits."""
    halves = [half for half in (pair["request"], pair.get("response")) if half]
    asker = pair["direction"].split(" -> ")[0]
    expected = "broker" if pair["request_code"] in FROM_BROKERS else "client"
    dull = any(word in pair["variant"] for word in ("VIP port", "trace topic"))
    cut = any(half.get("body_truncated") for half in halves)
    return asker == expected and not dull and not cut


def size(pair: Json) -> int:
    return len(pair["request"]["frame_hex"]) + len(
        (pair.get("response") or {}).get("frame_hex", "")
    )


def chosen(pairs: Iterable[tuple[str, Json]]) -> list[tuple[str, Json]]:
    """The smallest pairs that together cover every trait, in recorded order."""
    numbered = [(index, version, pair) for index, (version, pair) in enumerate(pairs)]
    missing = {trait for _, version, pair in numbered for trait in traits(pair, version)}
    taken: set[int] = set()
    while missing:
        index, version, pair = max(
            numbered,
            key=lambda item: (
                len(missing & set(traits(item[2], item[1]))) / size(item[2]),
                -item[0],
            ),
        )
        missing -= set(traits(pair, version))
        taken.add(index)
    return [(version, pair) for index, version, pair in numbered if index in taken]


def write_recorded(facts: Path, target: Path, request_codes: Iterable[int]) -> None:
    recordings = {
        path.stem.removeprefix("recorded_frames_"): read(path)["pairs"]
        for path in sorted(facts.glob("recorded_frames_*.json"))
    }
    for code in request_codes:
        pairs = [
            (version, pair)
            for version, recorded in recordings.items()
            for pair in recorded
            if pair["request_code"] == code and usable(pair)
        ]
        name = pairs[0][1]["request_name"]
        frames = [pair_entry(pair, version) for version, pair in chosen(pairs)]
        path = target / "frames" / "recorded" / file_name(code, name)
        write(path, {"code": code, "name": name, "exchanges": frames})
