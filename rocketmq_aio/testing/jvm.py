"""Backend that runs RocketMQ servers as Java processes."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rocketmq_aio.testing import conf
from rocketmq_aio.testing.errors import ClusterError, NotSupportedError
from rocketmq_aio.testing.jars import PACKAGES, fetch_jars, require_programs
from rocketmq_aio.testing.ports import BROKER, PROXY, choose_port
from rocketmq_aio.testing.process import GuardedProcess
from rocketmq_aio.testing.security import Security
from rocketmq_aio.testing.server import (
    STOP_SECONDS,
    TAIL_LINES,
    Backend,
    BrokerSpec,
    Launched,
    Server,
)

# Main classes, and their option for the configuration file.
NAMESRV_MAIN: Final = ("org.apache.rocketmq.namesrv.NamesrvStartup", "-c")
BROKER_MAIN: Final = ("org.apache.rocketmq.broker.BrokerStartup", "-c")
CONTROLLER_MAIN: Final = ("org.apache.rocketmq.controller.ControllerStartup", "-c")
PROXY_MAIN: Final = ("org.apache.rocketmq.proxy.ProxyStartup", "-pc")
ADMIN_MAIN: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"

# Java 17 hides internals that the mapped files of the servers need.
OPENINGS: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
SMALL: Final = ("-Xms128m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
BROKER_MEMORY: Final = ("-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseG1GC")
PROXY_MEMORY: Final = ("-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
OLD_JAVA: Final = "Unrecognized option: --add-opens"
ADMIN_SECONDS: Final = 60.0
UNSECURED: Final = Security()
NO_FILES: Final[Mapping[str, str]] = MappingProxyType({})


class JVMServer(Server):
    """A Java process; *home* holds its configuration, data and logs.

    When this process is killed, the folder above *home*, that of the cluster, is removed.

    :param command_of: the command that runs a version
    """

    def __init__(self, home: Path, version: str, command_of: Callable[[str], list[str]]) -> None:
        self._home = home
        self._command = command_of(version)
        self._command_of = command_of
        self._log = home / "logs" / "stdout.log"
        self._process: GuardedProcess | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.running else None

    def start(self, version: str | None = None) -> None:
        if self.running:
            raise ClusterError(f"{self._home.name} is running already")
        if version is not None:
            self._command = self._command_of(version)
        self.kill()  # cleans up after a process that exited
        remove_empty_files(self._home / "store")
        self._process = GuardedProcess(
            self._command, folder=self._home, log=self._log, remove=self._home.parent
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(
            signal.SIGCONT
        )  # a stopped process would not receive the next one
        self._process.send_signal(signal.SIGTERM)
        if not self._process.wait(STOP_SECONDS):
            self._process.kill()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def log_tail(self) -> str:
        reports = sorted(self._home.glob("hs_err_pid*.log"))
        crashes = [line for report in reports for line in _lines(report)[:TAIL_LINES]]
        tail = [*_lines(self._log)[-TAIL_LINES:], *crashes]
        if any(OLD_JAVA in line for line in tail):
            install = f"apt-get install {PACKAGES['java']}, or put another one into PATH"
            tail.append(f"{shutil.which('java')} is Java 8 or older, Java 17 is needed: {install}")
        return "\n".join(tail)

    def save_logs(self, folder: Path) -> None:
        """Copy the logs; it may rotate them meanwhile: files that disappear are ignored."""
        with suppress(shutil.Error):  # raised at the end, when all other files are copied
            shutil.copytree(
                self._home / "logs", folder / self._home.name, dirs_exist_ok=True, symlinks=True
            )

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or not self._process.running:
            raise ClusterError(f"{self._home.name} is not running")
        self._process.send_signal(number)


def remove_empty_files(store: Path) -> None:
    """Remove files without contents that hold no messages or queue entries yet.

    A broker that is killed while it creates one leaves it empty, and 4.9.7 does not start then
    ("length not matched message store config value").
    """
    for kind in ("commitlog", "consumequeue"):
        for path in (store / kind).rglob("*"):
            if path.is_file() and not path.stat().st_size:
                path.unlink()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


class JVMBackend(Backend):
    name = "jvm"

    def __init__(self, version: str, security: Security = UNSECURED) -> None:
        self._tool = AdminTool(version, security)
        self._version = version
        self._security = security
        self._folder = Path(tempfile.mkdtemp(prefix=f"rocketmq-{version}-"))
        self._servers: list[JVMServer] = []
        self._namesrvs: list[str] = []
        self._dledger_ports: dict[str, list[int]] = {}  # by broker name

    def namesrv(self, name: str, *, controller: bool = False) -> Launched:
        port = choose_port()
        self._namesrvs.append(f"127.0.0.1:{port}")
        properties = conf.namesrv_conf(port)
        if controller:
            own = choose_port()
            self.controller = f"127.0.0.1:{own}"
            properties |= {"enableControllerInNamesrv": "true"}
            properties |= conf.controller_conf([own], 0, self._controller_store(name))
        return self._launch(name, self._version, port, SMALL, NAMESRV_MAIN, properties)

    def controllers(self, names: Sequence[str]) -> list[Launched]:
        ports = [choose_port() for _ in names]
        self.controller = ";".join(f"127.0.0.1:{port}" for port in ports)
        launched = []
        for number, (name, port) in enumerate(zip(names, ports, strict=True)):
            properties = conf.controller_conf(ports, number, self._controller_store(name))
            launched.append(
                self._launch(name, self._version, port, SMALL, CONTROLLER_MAIN, properties)
            )
        return launched

    def broker(self, spec: BrokerSpec) -> Launched:
        port = choose_port(BROKER)
        store = self._folder / spec.name / "store"
        places = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
        namesrvs = ";".join(self._namesrvs)
        peers: list[int] = []
        if spec.dledger:
            chosen = (choose_port() for _ in range(spec.replicas))
            peers = self._dledger_ports.setdefault(spec.broker_name, list(chosen))
        properties = {**places, **conf.broker_conf(spec, port, namesrvs, self.controller, peers)}
        return self._launch(spec.name, spec.version, port, BROKER_MEMORY, BROKER_MAIN, properties)

    def proxy(self, name: str) -> Launched:
        if self._security != UNSECURED:
            raise NotSupportedError("proxies in front of secured brokers are not supported")
        if not list(fetch_jars(self._version).glob("rocketmq-proxy-*.jar")):
            raise NotSupportedError(f"Maven Central has no proxy of {self._version}")
        port = choose_port(PROXY)
        settings = json.dumps(conf.proxy_conf(port, ";".join(self._namesrvs)))
        main = (f"-DRMQ_PROXY_HOME={self._folder / name}", *PROXY_MAIN)
        return self._launch(name, self._version, port, PROXY_MEMORY, main, settings)

    def mqadmin(self, arguments: Sequence[str]) -> str:
        return self._tool.run(arguments, ";".join(self._namesrvs))

    def save_logs(self, folder: Path) -> None:
        for server in self._servers:
            server.save_logs(folder)

    def close(self) -> None:
        with ExitStack() as stack:  # one that does not end does not keep the others
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            for server in self._servers:
                stack.callback(server.kill)

    def _controller_store(self, name: str) -> str:
        return str(self._folder / name / "controller")

    def _launch(
        self,
        name: str,
        version: str,
        port: int,
        memory: Sequence[str],
        main: Sequence[str],
        settings: Mapping[str, str] | str,
    ) -> Launched:
        home = prepare_home(self._folder / name, self._security.files(version))
        file = home / "conf" / "server.conf"
        text = settings if isinstance(settings, str) else conf.properties_text(settings)
        file.write_text(text, encoding="utf-8")

        def command_of(wanted: str) -> list[str]:
            self._security.check_upgrade(version, wanted)
            classes = class_options(fetch_jars(wanted), self._security.java_options(), home)
            return ["java", *memory, *classes, *main, str(file)]

        server = JVMServer(home, version, command_of)
        self._servers.append(server)
        server.start()
        return Launched(name, f"127.0.0.1:{port}", server, version)


class AdminTool:
    """The official admin tool ``mqadmin`` of *version*.

    :raises UnavailableError: this machine cannot run it
    """

    def __init__(self, version: str, security: Security = UNSECURED) -> None:
        require_programs("java")
        self._jars = fetch_jars(version)
        self._security = security.java_options()
        self._files = security.files(version)

    def run(self, arguments: Sequence[str], namesrv: str) -> str:
        """Run it against the cluster of *namesrv*; return its output.

        :raises ClusterError: its exit code is not 0
        """
        with tempfile.TemporaryDirectory(prefix="rocketmq-mqadmin-") as folder:
            home = prepare_home(Path(folder), self._files)
            options = class_options(self._jars, self._security, home)
            done = subprocess.run(
                ["java", *SMALL, *options, ADMIN_MAIN, *arguments],
                env={**os.environ, "NAMESRV_ADDR": namesrv},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                check=False,
                timeout=ADMIN_SECONDS,
            )
        if done.returncode != 0:
            raise ClusterError(f"mqadmin {' '.join(arguments)} failed:\n{done.stdout}")
        return done.stdout


def class_options(jars: Path, security: Sequence[str], home: Path) -> list[str]:
    """Return the Java options of a server or tool with its folders in *home*.

    Those of `JAVA_OPT_EXT` come last, as in RocketMQ's own scripts, so that they win.
    """
    places = {"rocketmq.home.dir": home, "user.home": home, "java.io.tmpdir": home / "tmp"}
    folders = [f"-D{name}={folder}" for name, folder in places.items()]
    extra = shlex.split(os.environ.get("JAVA_OPT_EXT", ""))
    return [*OPENINGS, *security, *folders, "-XX:-UsePerfData", *extra, "-cp", f"{jars}/*"]


def prepare_home(home: Path, files: Mapping[str, str] = NO_FILES) -> Path:
    """Create the folders that a server or tool expects in its home, and *files* in conf."""
    for folder in ("conf", "logs", "store", "tmp"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    for program in ("namesrv", "broker", "tools"):  # 4.9 exits without them
        logback = home / "conf" / f"logback_{program}.xml"
        logback.write_text(conf.LOGBACK.format(name=program), encoding="utf-8")
    for name, text in files.items():
        (home / "conf" / name).write_text(text, encoding="utf-8")
    return home
