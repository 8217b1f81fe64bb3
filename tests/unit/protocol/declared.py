"""Collects the headers that the package declares."""

import pkgutil
from importlib import import_module

from rocketmq_aio.protocol import requests
from rocketmq_aio.protocol.header import Header


def all_headers() -> list[type[Header]]:
    """Return every header class of requests and responses."""
    for module in pkgutil.iter_modules(requests.__path__):
        import_module(f"{requests.__name__}.{module.name}")
    found: list[type[Header]] = [Header]
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith(requests.__name__)]
