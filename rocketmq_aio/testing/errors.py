"""What can go wrong while real RocketMQ servers are started and handled."""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """Base of everything `rocketmq_aio.testing` raises on its own account."""


class UnavailableError(ClusterError):
    """Nothing on this machine can run RocketMQ; the message names what to install."""


class StartError(ClusterError):
    """A server did not become ready; *logs* is the folder where its logs were kept."""

    def __init__(self, message: str, *, logs: Path | None = None) -> None:
        super().__init__(message if logs is None else f"{message}\nserver logs: {logs}")
        self.logs = logs


class NotOwnedError(ClusterError):
    """The servers are somebody else's: they can be used but not stopped or restarted."""
