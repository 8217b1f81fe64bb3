"""Readable JSON: values that fit on one line stay on one line."""

import json
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

WIDTH: Final = 180


def pretty(value: object, indent: int = 0) -> str:
    """Return JSON with each value that fits on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or (indent and len(flat) + indent <= WIDTH):
        return flat
    inner = indent + 1
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(k, ensure_ascii=False)}: {pretty(v, inner)}" for k, v in value.items()
        ]
    else:
        parts = [pretty(item, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    lines = ",\n".join(" " * inner + part for part in parts)
    return f"{opening}\n{lines}\n{' ' * indent}{closing}"


def read(path: Path) -> Json:
    document: Json = json.loads(path.read_text(encoding="utf-8"))
    return document


def write(path: Path, value: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pretty(value) + "\n", encoding="utf-8")


def file_name(code: int, name: str) -> str:
    return f"{code:03d}-{name.lower().replace('_', '-')}.json"
