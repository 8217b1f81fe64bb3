"""Generates the derived files in protocol/ from a folder of collected facts.

    python tools/extract_protocol.py FACTS [--target protocol]

FACTS holds request_codes.json, response_codes.json, headers.json, sysflags.json,
message_properties.json (taken from the broker's sources), golden_vectors.json (made by running
its classes) and recorded_frames_*.json (cut from real traffic). Written are codes.json, the
field tables of messages/*.json and everything below frames/. Meanings, response codes and notes
in messages/*.json are written by hand and kept; a field that a definition does not know yet
appears in it with an empty meaning, which the tests refuse.
"""

import argparse
from pathlib import Path
from typing import Final

from extract_frames import write_golden, write_recorded
from readable_json import Json, file_name, read, write

SPOKEN: Final = (
    *(11, 12, 14, 15, 17, 21, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 46),
    *(100, 101, 102, 105, 106, 200, 201, 202, 203, 204, 206, 207, 208, 215, 216, 220, 221, 222),
    *(224, 300, 307, 309, 310, 320, 325, 326, 351, 361, 370, 400),
    *(200050, 200051, 200053, 200151),
)

TYPES: Final = {
    "String": "string",
    "Integer": "int32",
    "int": "int32",
    "Long": "int64",
    "long": "int64",
    "Boolean": "boolean",
    "boolean": "boolean",
    "BoundaryType": "enum",
}

FLAG_TABLES: Final = (
    ("RemotingCommandFlag", "command_flags"),
    ("SerializeType", "serialize_types"),
    ("MessageSysFlag", "message_sys_flags"),
    ("CompressionType", "compression_types"),
    ("PullSysFlag", "pull_sys_flags"),
    ("PermName", "perm_bits"),
    ("TopicSysFlag", "topic_sys_flags"),
    ("SubscriptionSysFlag", "subscription_sys_flags"),
)

# --- codes.json ------------------------------------------------------------------------------


def known_by(fact: Json) -> list[str]:
    in_5_3_3 = not fact.get("absent_in_5_3_3") and "first_seen" not in fact
    found = (("4.9.7", fact["in_4_9_7"]), ("5.3.3", in_5_3_3), ("5.5.0", fact["in_5_5_0"]))
    return [version for version, known in found if known]


def code_entry(fact: Json) -> Json:
    entry: Json = {"code": fact["code"], "known_by": known_by(fact)}
    since = fact.get("first_5x") or fact.get("first_seen")
    if since:
        entry["since"] = since
    if "present_in_4_9" in fact:
        entry["in_4_9"] = fact["present_in_4_9"].replace("..", " to ")
    if "last_seen" in fact:
        entry["until"] = fact["last_seen"]
    return entry


def code_table(facts: Json) -> Json:
    entries = [(name, code_entry(fact)) for name, fact in facts.items()]
    return dict(sorted(entries, key=lambda item: item[1]["code"]))


def language_table(codes: dict[str, int]) -> Json:
    unknown = {"RUST": ["5.3.3", "5.5.0"], "NODE_JS": ["5.3.3", "5.5.0"]}
    unknown["RUST"].insert(0, "4.9.7")
    everyone = ["4.9.7", "5.3.3", "5.5.0"]
    return {
        name: {"code": code, "known_by": unknown.get(name, everyone)}
        for name, code in codes.items()
        if not name.startswith("_")
    }


def property_table(facts: Json) -> Json:
    table: Json = {}
    for constant, fact in facts.items():
        if constant == "KEY_SEPARATOR":  # a separator, not the name of a property
            continue
        since = "4.9" if fact["since49"] else fact.get("first_seen", "5.x")
        meaning = fact["meaning"].replace(" (see PROTOCOL.md)", "")
        table[fact["value"]] = {"since": since, "meaning": meaning}
    return table


def version_table(ordinals: dict[str, int]) -> Json:
    newer = {"V5_4_0": 493, "V5_5_0": 513, "HIGHER_VERSION": 612}
    return dict(sorted({**ordinals, **newer}.items(), key=lambda item: item[1]))


def codes(facts: Path) -> Json:
    flags = read(facts / "sysflags.json")
    bits = {
        ours: {
            name: value
            for name, value in flags[theirs].items()
            if not name.startswith(("_", "INDEX_"))
        }
        for theirs, ours in FLAG_TABLES
    }
    return {
        "about": "Numbers and names of the protocol; known_by names the releases looked at.",
        "request_codes": code_table(read(facts / "request_codes.json")),
        "response_codes": code_table(read(facts / "response_codes.json")),
        "language_codes": language_table(flags["LanguageCode"]),
        "versions": version_table(read(facts / "golden_vectors.json")["version_ordinals"]),
        **bits,
        "message_magics": {
            name: spec["magic_hex"] for name, spec in flags["MessageVersion"].items()
        },
        "message_properties": property_table(read(facts / "message_properties.json")["properties"]),
    }


# --- messages/*.json -------------------------------------------------------------------------


def header_for(headers: dict[str, Json], name: str, direction: str) -> Json | None:
    for fact in headers.values():
        names = {
            fact["request_code"],
            *fact.get("also_used_by", ()),
            *fact.get("all_request_codes", ()),
        }
        if fact["direction"] == direction and name in names:
            return fact
    return None


def since(field: Json) -> str:
    if field.get("added_in_4_9_4_to_4_9_8"):
        return "4.9.4"
    if field.get("in_4_9_7"):
        return "4.9"
    return str(field.get("first_seen", "5.x"))


def field_entry(field: Json, letters: Json) -> Json:
    entry: Json = {"name": field["name"]}
    if field["name"] in letters:
        entry["long_name"] = letters[field["name"]].split(" ")[0]
    entry["type"] = TYPES[field["type"]]
    # Fields added by a later release of 5.x are optional on earlier servers.
    entry["required"] = field["required"] and "first_seen" not in field
    entry["since"] = since(field)
    return entry


def merged_fields(header: Json | None, letters: Json, written: list[Json]) -> list[Json]:
    """Derived facts of each field, with its written description."""
    by_hand = {entry["name"]: entry for entry in written}
    own = [f for f in (header or {"fields": []})["fields"] if not f.get("inherited_from")]
    return [{"meaning": "", **by_hand.get(f["name"], {}), **field_entry(f, letters)} for f in own]


def ordered(entry: Json) -> Json:
    """A field entry with its meaning last."""
    return {**{k: v for k, v in entry.items() if k != "meaning"}, "meaning": entry["meaning"]}


def side(headers: Json, name: str, direction: str, written: Json) -> Json:
    header = header_for(headers, name, direction)
    letters = (header or {}).get("v2_mapping", {})
    fields = merged_fields(header, letters, written.get("header", []))
    result: Json = {"header": [ordered(entry) for entry in fields]}
    if "beside" in written:
        result["beside"] = written["beside"]
    inherited = [f["name"] for f in (header or {"fields": []})["fields"] if f.get("inherited_from")]
    if inherited:
        result["common"] = sorted(inherited)
    return {**result, "body": written.get("body")}


def definition(code: int, name: str, fact: Json, headers: Json, written: Json) -> Json:
    top = {"code": code, "name": name, "known_by": known_by(fact)}
    rest = {key: value for key, value in written.items() if key not in top}
    result = {**top, **rest}
    result["request"] = side(headers, name, "request", written.get("request", {}))
    if written.get("oneway") != "always":
        result["response"] = side(headers, name, "response", written.get("response", {}))
    return result


def write_messages(facts: Path, target: Path) -> None:
    headers = read(facts / "headers.json")
    by_code = {
        fact["code"]: (name, fact) for name, fact in read(facts / "request_codes.json").items()
    }
    for code in SPOKEN:
        name, fact = by_code[code]
        path = target / "messages" / file_name(code, name)
        written = read(path) if path.exists() else {}
        write(path, definition(code, name, fact, headers, written))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("facts", type=Path)
    parser.add_argument("--target", type=Path, default=Path(__file__).parents[1] / "protocol")
    options = parser.parse_args()
    write(options.target / "codes.json", codes(options.facts))
    write_messages(options.facts, options.target)
    write_golden(options.facts, options.target)
    write_recorded(options.facts, options.target, SPOKEN)


if __name__ == "__main__":
    main()
