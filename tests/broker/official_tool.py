"""The official admin tool: many commands in one JVM, whose start takes most of the time of one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from rocketmq_aio.testing.jars import fetch_jars
from rocketmq_aio.testing.jvm import SMALL, UNSECURED, class_options, prepare_home
from rocketmq_aio.testing.security import Security
from tests.broker.reading_groups import in_thread

SOURCE: Final = Path(__file__).parent / "java" / "Tool.java"
END: Final = "@@@\n"  # Tool.java prints it after the output of each command
FAILURE: Final = "org.apache.rocketmq.tools.command.SubCommandException: "


class ToolError(Exception):
    """A command of mqadmin failed; the message has its output."""


class OfficialTool:
    """A JVM that runs commands of mqadmin one after the other; `close` ends it.

    Files of the commands are relative to *folder*.

    :param security: of the cluster
    """

    def __init__(
        self, version: str, namesrv: str, folder: Path, security: Security = UNSECURED
    ) -> None:
        self._version = version
        self._namesrv = namesrv
        self._security = security
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None

    def run(self, command: str) -> str:
        """Run *command*, with its words apart by single spaces; return its output.

        With ``-n`` it runs on another cluster; an empty one lists the commands.

        :raises ToolError: it failed, with a stack trace in its output, or ended the JVM because it
            does not know an option
        """
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        has_servers = not command or " -n " in command
        given = command if has_servers else f"{command} -n {self._namesrv}"
        self._process.stdin.write(f"{given}\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line == END:
                break
            printed.append(line)
        else:
            self.close()
            raise ToolError(f"{command} ended the JVM:\n{''.join(printed)}")
        if any(line.startswith(FAILURE) for line in printed):
            raise ToolError(f"{command} failed:\n{''.join(printed)}")
        return "".join(printed)

    def _start(self) -> subprocess.Popen[str]:
        files = self._security.files(self._version)
        home = prepare_home(self.folder / "home", files)  # 4.9 prints nothing without it
        options = class_options(fetch_jars(self._version), self._security.java_options(), home)
        return subprocess.Popen(
            ["java", *SMALL, *options, str(SOURCE)],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    def close(self) -> None:
        """End the JVM."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    async def __call__(self, *commands: str) -> list[str]:
        """Run *commands* in a thread and return the output of each."""
        return [await in_thread(self.run, command) for command in commands]


async def mqadmin(tool: OfficialTool, command: str) -> str:
    """Run one command of *tool* and return its output."""
    (printed,) = await tool(command)
    return printed


def cells(printed: str, first: str) -> list[list[str]]:
    """Return the cells of the lines that begin with *first*."""
    lines = [line.split() for line in printed.splitlines()]
    return [line for line in lines if line[:1] == [first]]
