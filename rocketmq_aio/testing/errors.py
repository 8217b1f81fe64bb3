"""Errors of `rocketmq_aio.testing`."""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """Base class of the errors of `rocketmq_aio.testing`."""


class UnavailableError(ClusterError):
    """This machine cannot run RocketMQ; the message names what to install."""


class StartError(ClusterError):
    """A server did not become ready; *logs* is the folder with copies of its logs."""

    def __init__(self, message: str, *, logs: Path | None = None) -> None:
        super().__init__(message if logs is None else f"{message}\nserver logs: {logs}")
        self.logs = logs


class NotOwnedError(ClusterError):
    """The servers are external: they can be used but not stopped or restarted."""


class NotSupportedError(ClusterError):
    """The backend cannot do this; the message names one that can."""
