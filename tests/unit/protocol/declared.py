"""What the package declares, found by looking."""

import pkgutil
from importlib import import_module

from rocketmq_aio.protocol import requests
from rocketmq_aio.protocol.header import Header, RequestHeader


def all_headers() -> list[type[Header]]:
    """Return every header class that the package declares."""
    for module in pkgutil.iter_modules(requests.__path__):
        import_module(f"{requests.__name__}.{module.name}")
    found: list[type[Header]] = [Header]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind not in (Header, RequestHeader)]
