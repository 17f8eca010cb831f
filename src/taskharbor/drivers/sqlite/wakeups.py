"""Wake-ups between processes: each listener owns a datagram socket in a folder beside the file.

    jobs.db.wake/<name>.json   who listens: namespace, worker, queues
    jobs.db.wake/<name>.sock   where a wake-up is sent

After its commit a writer notifies every listener of the queues where work arrived, with one datagram
each. Wake-ups may get lost: a full socket, a stale folder, missing rights. Nothing here raises for that;
polling stays correct.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable

import msgspec

from taskharbor.drivers.messages import Inbox, Wakeup, WakeupKind
from taskharbor.drivers.sqlite.location import Location
from taskharbor.model.entropy import Entropy

_LONGEST_ADDRESS = 100  # 108 bytes with the NUL on Linux, 104 elsewhere
_LONGEST_DATAGRAM = 8000
_TICK = 2.0  # seconds: no clock of a file system ticks more slowly


class Notices:
    """What is reported once a step is committed: wake-ups, and entries that were dropped."""

    __slots__ = ("cancels", "orphans", "queues")

    def __init__(self, queues: set[str] | None = None) -> None:
        self.queues: set[str] = queues or set()
        self.orphans: list[str] = []  # names of entries that were dropped, because they have no record
        self.cancels: list[tuple[str, str]] = []  # (worker, job id)

    def __bool__(self) -> bool:
        return bool(self.queues or self.cancels)

    def add(self, more: Notices) -> None:
        self.queues |= more.queues
        self.cancels += more.cancels
        self.orphans += more.orphans

    def clear(self) -> None:
        for notes in (self.queues, self.cancels, self.orphans):
            notes.clear()


class ListenerInfo(msgspec.Struct, frozen=True):
    """Who listens: the content of its file."""

    namespace: str
    worker: str
    queues: frozenset[str]


class Datagram(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of one datagram."""

    queues: list[str] = []
    cancels: list[str] = []


_datagram_decoder = msgspec.json.Decoder(Datagram)
_info_decoder = msgspec.json.Decoder(ListenerInfo)


class Folder:
    """The folder of sockets beside one file, reached by addresses short enough for a socket."""

    def __init__(self, path: str) -> None:
        self._file = path
        self.path = path + ".wake"
        self._descriptor: int | None = None

    def make(self) -> None:
        """Create it if it is missing, with the rights of the file itself."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path)
            os.chmod(self.path, 0o700 | _others(self._file, 0o070, 0o007))

    def address(self, name: str) -> str:
        """Where the socket of that name is bound. A long path is reached through an open folder."""
        plain = os.path.join(self.path, name)
        if len(os.fsencode(plain)) <= _LONGEST_ADDRESS:
            return plain
        return f"/proc/self/fd/{self._opened()}/{name}"

    def share(self, name: str) -> None:
        """Give the socket the rights of the file."""
        os.chmod(os.path.join(self.path, name), 0o600 | _others(self._file, 0o060, 0o006))

    def names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except OSError:
            return []

    def changed_ns(self) -> int | None:
        """When a listener last came or went; None when there is no folder."""
        if not os.access(self.path, os.F_OK):
            return None
        return os.stat(self.path).st_mtime_ns

    def remove(self, name: str) -> None:
        for ending in (".json", ".sock"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.path, name + ending))

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _opened(self) -> int:
        if self._descriptor is not None and not _is_same_folder(self._descriptor, self.path):
            self.close()  # the folder was removed and made again
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        return self._descriptor


class Bell:
    """The sending side of one handle. Safe from any thread."""

    def __init__(self, path: str, namespace: str, monotonic: Callable[[], float]) -> None:
        self._folder = Folder(path)
        self._namespace = namespace
        self._monotonic = monotonic
        self._infos: dict[str, ListenerInfo | None] = {}
        self._stamp_ns: int | None = None  # of the last change of the folder
        self._stamp_seen = 0.0
        self._listed = 0.0
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def ring(self, notices: Notices) -> None:
        """Notify the listeners concerned. Never raises, and waits for no listener."""
        try:
            with self._lock:
                for name, info in self._listening().items():
                    if info is not None and info.namespace == self._namespace:
                        self._send(name, info, notices)
        except OSError:
            return

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._folder.close()

    def _listening(self) -> dict[str, ListenerInfo | None]:
        """Who listens. The folder is listed again unless nothing can have changed in it.

        Changes within one tick of the file system's clock have the same stamp. So a list is relied on only if
        it was made a tick after its stamp was first seen: a later change has another stamp.
        """
        changed_ns, now = self._folder.changed_ns(), self._monotonic()
        if changed_ns != self._stamp_ns:
            self._stamp_ns, self._stamp_seen = changed_ns, now
        elif self._listed > self._stamp_seen + _TICK:
            return self._infos
        names = {name.removesuffix(".json") for name in self._folder.names() if name.endswith(".json")}
        self._infos = {name: self._infos.get(name) or self._read(name) for name in names}
        self._listed = now
        return self._infos

    def _read(self, name: str) -> ListenerInfo | None:
        try:
            with open(os.path.join(self._folder.path, name + ".json"), "rb") as file:
                return _info_decoder.decode(file.read())
        except (OSError, msgspec.DecodeError):
            return None

    def _send(self, name: str, info: ListenerInfo, notices: Notices) -> None:
        queues = sorted(notices.queues.intersection(info.queues))
        cancels = [job_id for worker, job_id in notices.cancels if worker == info.worker]
        if not queues and not cancels:
            return
        text = msgspec.json.encode(Datagram(queues, cancels))
        if len(text) > _LONGEST_DATAGRAM:  # one of many is as good a reason to look as all of them
            text = msgspec.json.encode(Datagram(queues[:50], cancels[:50]))
        try:
            self._sender().sendto(text, self._folder.address(name + ".sock"))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):  # its process is gone
                self._folder.remove(name)

    def _sender(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        return self._socket


def ring_once(location: Location, notices: Notices) -> None:
    """Notify listeners without a handle that is open."""
    bell = Bell(location.path, location.namespace, float)
    bell.ring(notices)
    bell.close()


class Subscription(Inbox):
    """The wake-ups of one worker for some queues, with a socket that other processes can send them to."""

    def __init__(
        self, path: str, info: ListenerInfo, entropy: Entropy, on_close: Callable[[Subscription], None]
    ) -> None:
        super().__init__()
        self._info = info
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._folder = Folder(path)
        self._name = entropy.bytes(8).hex()
        self._socket: socket.socket | None = None
        try:
            self._listen()
        except OSError:
            # No socket here, so no wake-ups; workers poll.
            self._stop_listening()

    async def aclose(self) -> None:
        if not self._is_closed:
            self._stop_listening()
            self.end()
            self._on_close(self)

    def _listen(self) -> None:
        """The socket first, then the file that names it: who reads the file can send."""
        self._folder.make()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self._folder.address(self._name + ".sock"))
        self._folder.share(self._name + ".sock")
        draft = os.path.join(self._folder.path, self._name + ".new")
        with open(draft, "wb") as file:
            file.write(msgspec.json.encode(self._info))
        os.replace(draft, os.path.join(self._folder.path, self._name + ".json"))
        self._loop.add_reader(self._socket.fileno(), self._receive)

    def _stop_listening(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._folder.remove(self._name)
        self._folder.close()

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                datagram = _datagram_decoder.decode(self._socket.recv(65_536))
            except (BlockingIOError, OSError):
                break
            except msgspec.DecodeError:
                continue
            for queue in datagram.queues:
                self._unread[Wakeup(WakeupKind.WORK, queue=queue)] = None
            for job_id in datagram.cancels:
                self._unread[Wakeup(WakeupKind.CANCEL, job_id=job_id)] = None
            self._news.set()


def _others(path: str, group: int, everybody: int) -> int:
    """The rights of group and everybody that go with being allowed to write the file."""
    mode = os.stat(path).st_mode
    return (group if mode & 0o020 else 0) | (everybody if mode & 0o002 else 0)


def _is_same_folder(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
