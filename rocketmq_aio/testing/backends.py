"""Choice of the backend that runs RocketMQ servers."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

from rocketmq_aio.errors import missing_extra
from rocketmq_aio.testing.errors import ClusterError, UnavailableError
from rocketmq_aio.testing.external import ExternalBackend
from rocketmq_aio.testing.jvm import UNSECURED, JVMBackend
from rocketmq_aio.testing.security import Security
from rocketmq_aio.testing.server import Backend

NAMES: Final = ("auto", "embedded", "external", "docker", "containers", "jvm")


def open_backend(name: str, version: str, security: Security = UNSECURED) -> Backend:
    """Return the backend *name*; "docker" is another name of "containers".

    "auto" means real servers: it depends on the environment, then on the machine.  Real servers
    with accounts or TLS have to run as Java processes.

    :raises ClusterError: the backend does not exist
    :raises UnavailableError: the backend cannot be used here; the message names what to install
    """
    wanted = os.environ.get("ROCKETMQ_AIO_BACKEND", "auto") if name == "auto" else name
    if wanted not in NAMES:
        raise ClusterError(f"no backend {wanted!r}: choose one of {', '.join(NAMES)}")
    if wanted == "embedded":
        from rocketmq_aio.testing.embedded import EmbeddedBackend  # imported only where it is used

        return EmbeddedBackend(version, security)
    if security != UNSECURED:
        if wanted not in ("auto", "jvm"):
            reason = f"accounts and tls need the backend 'embedded' or 'jvm', not {wanted!r}"
            raise ClusterError(reason)
        return JVMBackend(version, security)
    if wanted == "external" or (wanted == "auto" and os.environ.get("ROCKETMQ_NAMESRV")):
        return ExternalBackend(os.environ.get("ROCKETMQ_NAMESRV", ""))
    if wanted in ("docker", "containers"):
        return _container_backend(version)
    if wanted == "auto" and (found := _container_backend_if_any(version)) is not None:
        return found
    return JVMBackend(version)


def _container_backend(version: str) -> Backend:
    # Imported here: the container client is an extra that other backends do not need.
    try:
        from rocketmq_aio.testing.containers import ContainerBackend
    except ImportError as error:
        reason = f"containers need {error.name}: {missing_extra('testing')}"
        raise UnavailableError(reason) from error
    return ContainerBackend(version)


def _container_backend_if_any(version: str) -> Backend | None:
    if find_spec("testcontainers") is None:
        return None
    from rocketmq_aio.testing.containers import ContainerBackend, are_available

    return ContainerBackend(version) if are_available(version) else None
