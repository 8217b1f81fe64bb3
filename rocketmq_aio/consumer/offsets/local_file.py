"""Local offset file: the offset store for broadcasting.

After a crash the file holds either the whole old or the whole new state: the new state is written
to another file, synced, and renamed; the old state stays as ``.bak``.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
from anyio import CapacityLimiter, to_thread
from msgspec.structs import replace

from rocketmq_aio.consumer.common.events import CorruptOffsetFile
from rocketmq_aio.consumer.offsets.remote_store import MAX_OFFSET, check_offset
from rocketmq_aio.errors import CodecError, CommitError, ConfigError, NotRunningError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import read_reset_offsets
from rocketmq_aio.remoting.fork import reset_after_fork

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FOLDER_VARIABLE: Final = "ROCKETMQ_OFFSET_FOLDER"
MAX_FILE_BYTES: Final = 16 * 1024 * 1024  # some 150 000 queues
MAX_NAME_BYTES: Final = 255  # what file systems take
NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)  # a pipe in place of the file must not block
BINARY: Final = getattr(os, "O_BINARY", 0)

logger = get_logger(__name__)

T = TypeVar("T")


def encode_offsets(table: Mapping[MessageQueue, int]) -> bytes:
    """Return *table* as standard JSON, one queue a line."""
    names = ("topic", "brokerName", "queueId", "offset")
    rows = [(q.topic, q.broker_name, q.queue_id, offset) for q, offset in sorted(table.items())]
    lines = [msgspec.json.encode(dict(zip(names, row, strict=True))) for row in rows]
    return b'{"offsetTable":[\n' + b",\n".join(lines) + b"\n]}\n"


def decode_offsets(content: bytes) -> dict[MessageQueue, int]:
    """Return the table in *content*, written here or by a Java client.

    :raises CodecError: it is neither, or has an invalid offset
    """
    table = read_reset_offsets(content)
    for queue, offset in table.items():
        if not 0 <= offset <= MAX_OFFSET:
            raise CodecError("offsetTable", 0, f"{queue} at offset {offset}")
    return table


def path_component(setting: str, name: str) -> str:
    """Return *name* as a folder name; separators and dots are percent-encoded.

    :raises ConfigError: it is empty, or too long for a folder
    """
    safe = quote(name, safe="@#+=,", errors="surrogatepass")
    if safe in (".", ".."):
        safe = safe.replace(".", "%2E")
    if not 0 < len(safe) <= MAX_NAME_BYTES:
        raise ConfigError(setting, name, f"expected 1 to {MAX_NAME_BYTES} bytes for a folder name")
    return safe


class Disk:
    """File system operations; each blocks, and raises OSError on failure."""

    def make_folder(self, folder: Path) -> None:
        """Make *folder* for this user only, unless it exists; a symbolic link is an error."""
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise NotADirectoryError(f"{folder} is not a folder, or is a symbolic link")

    def lock(self, path: Path) -> int:
        """Return a descriptor that holds the lock at *path* until it is closed.

        :raises BlockingIOError: another store holds it
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o600)
        try:
            _lock(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, path: Path) -> bytes | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT | BINARY)
        except FileNotFoundError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"{path} is not a plain file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(MAX_FILE_BYTES + 1)
        finally:
            os.close(descriptor)

    def write(self, path: Path, content: bytes) -> None:
        """Write a new file at *path*, for this user only, and sync it."""
        path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | BINARY
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        if sys.platform == "win32":
            return  # has no such call
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


if sys.platform == "win32":

    def _lock(descriptor: int) -> None:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:  # what Windows says where others have BlockingIOError
            raise BlockingIOError(*error.args) from error

else:

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class OffsetFile:
    """One offset file with its backup and its lock; every method blocks."""

    def __init__(self, base: Path, client_id: str, group: str, disk: Disk) -> None:
        self.base = base
        self.client_folder = base / path_component("client_id", client_id)
        self.folder = self.client_folder / path_component("group", group)
        self.path = self.folder / "offsets.json"
        self.backup = self.folder / "offsets.json.bak"
        self._client_id = client_id
        self._disk = disk
        self._lock: int | None = None
        reset_after_fork(self)

    def open(self) -> tuple[dict[MessageQueue, int], list[CorruptOffsetFile]]:
        """Lock the file; return its content and the corrupt files that were moved.

        :raises ConfigError: it is in use, or cannot be used
        """
        try:
            self._make_folders()
            self._take_lock()
            return self._read_newest()
        except ConfigError:
            raise
        except (OSError, ValueError) as error:  # ValueError: no path can be like that
            self.close()
            raise ConfigError("offset_folder", str(self.base), str(error)) from error

    def replace(self, table: Mapping[MessageQueue, int]) -> None:
        """Replace the content by *table*, completely or not at all.

        :raises OSError: the file was not changed
        """
        content = encode_offsets(table)
        if len(content) > MAX_FILE_BYTES:
            raise OSError(f"{len(table)} queues are too many for {self.path}")
        fresh = self.folder / "offsets.json.tmp"
        self._disk.write(fresh, content)
        # Between the two renames there is only the backup, and open() takes that.
        with suppress(FileNotFoundError):
            self._disk.rename(self.path, self.backup)
        self._disk.rename(fresh, self.path)
        self._disk.sync_folder(self.folder)

    def close(self) -> None:
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def after_fork(self) -> None:
        """In a forked child: drop the inherited descriptor, or it keeps the parent's lock held.

        Closing it does not unlock: the parent's descriptor stays open.
        """
        self.close()

    def _make_folders(self) -> None:
        self.base.parent.mkdir(parents=True, exist_ok=True)
        self.base.mkdir(mode=0o700, exist_ok=True)  # the user may have made it a link
        self._disk.make_folder(self.client_folder)
        self._disk.make_folder(self.folder)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        try:
            self._lock = self._disk.lock(self.folder / "offsets.lock")
        except BlockingIOError as error:
            reason = f"another consumer of this client id keeps its offsets in {self.folder}"
            hint = "give each its own instance_name"
            raise ConfigError("client_id", self._client_id, f"{reason}; {hint}") from error

    def _read_newest(self) -> tuple[dict[MessageQueue, int], list[CorruptOffsetFile]]:
        offsets: dict[MessageQueue, int] | None = None
        faults: dict[Path, CodecError] = {}
        for path in (self.path, self.backup):
            try:
                offsets = self._read(path)
            except CodecError as error:
                faults[path] = error
            if offsets is not None:
                break
        aside = [self._set_aside(path, str(faults[path]), offsets is not None) for path in faults]
        return offsets or {}, aside

    def _read(self, path: Path) -> dict[MessageQueue, int] | None:
        content = self._disk.read(path)
        if content is None:
            return None
        if len(content) > MAX_FILE_BYTES:
            raise CodecError("offsetTable", MAX_FILE_BYTES, "the file is too long")
        return decode_offsets(content)

    def _set_aside(self, path: Path, reason: str, recovered: bool) -> CorruptOffsetFile:
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        kept_as = path.with_name(f"{path.name}.corrupt-{moment}")
        self._disk.rename(path, kept_as)
        return CorruptOffsetFile(path=path, kept_as=kept_as, reason=reason, recovered=recovered)


class LocalFileOffsetStore:
    """An `OffsetStore` in ``<folder>/<instance name>/<group>/offsets.json``.

    A file of a Java client there is read, and replaced by standard JSON.  A corrupt file never
    stops the consumer: it is renamed to ``offsets.json.corrupt-*``, `CorruptOffsetFile` is
    published, and the backup is used; without a backup the queues have no offset.  To start from
    scratch, delete the group's folder.

    A second consumer of the same instance name and group, in any process, raises `ConfigError`.
    A copy, also a pickled one, is a new store in the same folder, of no consumer.

    :param folder: the folder of all clients; default: ``ROCKETMQ_OFFSET_FOLDER``, or
        ``.rocketmq_offsets`` in the user's home
    """

    on_corrupt: Callable[[CorruptOffsetFile], None] | None = None

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, *, disk: Disk | None = None
    ) -> None:
        self._base = offset_folder(folder)
        self._disk = disk or Disk()
        self._file: OffsetFile | None = None
        self._inner: Callable[[str], str] | None = None
        self._saved: dict[MessageQueue, int] | None = None  # content of the file
        self._latest: dict[MessageQueue, int] = {}
        # Work goes on in its thread after its task is cancelled.
        self._using_file = Lock()
        self._threads = CapacityLimiter(1)  # the threads of the application cannot starve it

    def __reduce__(self) -> tuple[object, ...]:  # copied and pickled with settings
        return partial(type(self), disk=self._disk), (self._base,)

    @property
    def path(self) -> Path | None:
        """The file; None while no consumer uses this store."""
        return self._file.path if self._file is not None else None

    def bind(
        self, client_id: str, group: str, *, inner: Callable[[str], str] | None = None
    ) -> None:
        """Set the client id and group; called by the consumer before `load`.

        :param inner: returns the name without the namespace for a topic in the file, since Java
            clients write it with the namespace
        :raises ConfigError: another consumer uses this store, or a name cannot be a folder
        """
        if self._file is not None:
            reason = f"it serves another consumer already, in {self._file.folder}"
            raise ConfigError("offset_store", self, reason)
        self._file = OffsetFile(self._base, client_id, group, self._disk)
        self._inner = inner

    async def load(self) -> None:
        """Lock and read the file.

        :raises ConfigError: another consumer uses it, or the folder cannot be used
        :raises NotRunningError: not bound
        """
        file = self._bound()
        corrupt = await self._in_thread(self._open, file)
        for each in corrupt:
            logger.warning(
                "offset_file_corrupt",
                path=str(each.path),
                kept_as=str(each.kept_as),
                reason=each.reason,
                recovered=each.recovered,
            )
            if self.on_corrupt is not None:
                self.on_corrupt(each)

    async def read(self, queue: MessageQueue) -> int | None:
        return self._latest.get(queue, self._loaded().get(queue))

    async def update(self, queue: MessageQueue, offset: int) -> None:
        check_offset(offset)
        self._latest[queue] = offset

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Write the file if an offset has changed; offsets of other queues stay in it.

        :raises CommitError: the file cannot be written, and is unchanged
        """
        if changed := self._changed(queues):
            try:
                await self._in_thread(self._write, tuple(queues))
            except RuntimeError as error:  # no thread can be started now
                raise CommitError(dict.fromkeys(changed, error)) from error

    async def remove(self, queue: MessageQueue) -> None:
        """Forget the update of *queue*; the file keeps its offset."""
        self._latest.pop(queue, None)

    async def close(self) -> None:
        """Unlock the file, after a running write; then `bind` is allowed again."""
        try:
            await self._in_thread(self._release)
        except RuntimeError:  # no thread can be started now
            self._release()

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        """Call *work* in a thread, which goes on after a cancellation: a disk may hang."""
        call = partial(work, *args)
        return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)

    def _bound(self) -> OffsetFile:
        if self._file is None:
            raise NotRunningError("the offset store is not bound to a consumer")
        return self._file

    def _loaded(self) -> dict[MessageQueue, int]:
        if self._saved is None:
            raise NotRunningError("the offset file is not loaded")
        return self._saved

    def _changed(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        saved = self._loaded()
        latest = ((queue, self._latest.get(queue)) for queue in queues)
        return {q: new for q, new in latest if new is not None and new != saved.get(q)}

    # The methods below run in a worker thread.

    def _open(self, file: OffsetFile) -> list[CorruptOffsetFile]:
        with self._using_file:
            if file is not self._file:
                return []  # closed before this thread began
            saved, corrupt = file.open()
            if (inner := self._inner) is not None:
                saved = {replace(q, topic=inner(q.topic)): offset for q, offset in saved.items()}
            self._saved = saved
            return corrupt

    def _write(self, queues: Collection[MessageQueue]) -> None:
        with self._using_file:
            changed = self._changed(queues)  # an earlier write may have included some
            if not changed:
                return
            table = self._loaded() | changed
            try:
                self._bound().replace(table)
            except OSError as error:
                raise CommitError(dict.fromkeys(changed, error)) from error
            self._saved = table

    def _release(self) -> None:
        with self._using_file:
            file, self._file, self._saved = self._file, None, None
            self._latest.clear()
            if file is not None:
                file.close()


def offset_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Return *folder*, or the default from the environment or the user's home.

    :raises ConfigError: it is not a path, or the user has no home
    """
    chosen = folder if folder is not None else os.environ.get(FOLDER_VARIABLE) or None
    try:
        return Path(chosen or Path.home() / ".rocketmq_offsets").expanduser()
    except (RuntimeError, TypeError) as error:
        raise ConfigError("offset_folder", chosen, str(error)) from error
