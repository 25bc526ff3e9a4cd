"""Where `replay` sends records: a socket or a file, each record framed so that its receiver can tell it from the next.

Streams and files get a length (u32, little-endian) before each record, or a line for each; a UDP datagram is a record.
A wait for a slow receiver ends when somebody asks to stop; nothing is then half sent but to a stream that is closed.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import stat
import struct
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from journal.commands.options import CommandError
from journal.commands.presentation import RecordView
from journal.commands.streams import Interruption

LENGTH = struct.Struct("<I")
DATAGRAM_SIZE_MAX = 65_507  # RFC 768: 65,535 bytes less the headers of UDP and IPv4
CONNECT_TIMEOUT_S = 10.0
HELD_SIZE_MAX = 256 << 10  # of records on their way to a file
ADDRESS = re.compile(r"(tcp|udp)://(\[[^\]]+\]|[^:/]+):([0-9]{1,5})")
HOW = "write tcp://HOST:PORT, udp://HOST:PORT, unix:PATH, a file's name, or - for stdout"


class Interrupted(Exception):
    """Somebody asked to stop while the receiver took its time."""


class ReceiverGone(Exception):
    """The receiver does not take any more; the text says why."""


class Destination(Protocol):
    """Takes records one by one.

    Attributes:
        sent_count: how many went out whole.
        last: the last of them.
    """

    sent_count: int
    last: RecordView | None

    def send(self, view: RecordView) -> None:
        """Send one, or keep it to be sent with the next ones.

        Raises:
            ReceiverGone, Interrupted, CommandError.
        """
        ...

    def flush(self) -> None:
        """What was sent is out when this returns."""
        ...

    def close(self) -> None:
        """No more."""
        ...


def prefixed(view: RecordView) -> bytes:
    """A record behind its length."""
    return LENGTH.pack(len(view.record)) + view.record


def as_line(view: RecordView) -> bytes:
    """A record as a line of text."""
    return view.line().encode() + b"\n"


class StreamDestination:
    """A connected stream."""

    def __init__(self, stream: socket.socket, frame: Callable[[RecordView], bytes], interruption: Interruption) -> None:
        stream.setblocking(False)
        self._stream, self._frame, self._interruption = stream, frame, interruption
        self.sent_count = 0
        self.last: RecordView | None = None

    def send(self, view: RecordView) -> None:
        """All of it, however slow the receiver."""
        left = memoryview(self._frame(view))
        while left:
            try:
                left = left[self._stream.send(left) :]
            except BlockingIOError:
                if not self._interruption.wait_writable(self._stream.fileno()):
                    raise Interrupted from None
            except OSError as gone:
                raise ReceiverGone(gone.strerror or str(gone)) from None
        self.sent_count, self.last = self.sent_count + 1, view

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Tell the receiver that this was all."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)
        self._stream.close()


class DatagramDestination:
    """A UDP address."""

    def __init__(self, sender: socket.socket, interruption: Interruption) -> None:
        sender.setblocking(False)
        self._sender, self._interruption = sender, interruption
        self.sent_count = 0
        self.last: RecordView | None = None

    def send(self, view: RecordView) -> None:
        """A datagram. Whether anybody gets it, nobody knows."""
        if len(view.record) > DATAGRAM_SIZE_MAX:
            raise CommandError(
                f"record {view.index:#018x} has {len(view.record)} bytes and a datagram at most {DATAGRAM_SIZE_MAX}: "
                "replay to tcp:// or unix:"
            )
        while True:
            try:
                self._sender.send(view.record)
                break
            except BlockingIOError:
                if not self._interruption.wait_writable(self._sender.fileno()):
                    raise Interrupted from None
            except ConnectionRefusedError:  # told of an earlier datagram, and not sent: nobody listens yet, or any more
                continue
            except OSError as gone:
                raise ReceiverGone(gone.strerror or str(gone)) from None
        self.sent_count, self.last = self.sent_count + 1, view

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """No more."""
        self._sender.close()


class FileDestination:
    """A file, a pipe, or stdout."""

    def __init__(self, descriptor: int, frame: Callable[[RecordView], bytes], interruption: Interruption) -> None:
        self._descriptor, self._frame, self._interruption = descriptor, frame, interruption
        # What can be written to takes at least so much without stopping this process (pipe(7)).
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._at_once = HELD_SIZE_MAX if is_file else select.PIPE_BUF
        self._held = bytearray()
        self._held_views: deque[tuple[int, RecordView]] = deque()  # with where each ends in what is held
        self.sent_count = 0
        self.last: RecordView | None = None

    def send(self, view: RecordView) -> None:
        """Held until there is enough."""
        self._held += self._frame(view)
        self._held_views.append((len(self._held), view))
        if len(self._held) >= HELD_SIZE_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        written, held = 0, bytes(self._held)
        while written < len(held):
            if not self._interruption.wait_writable(self._descriptor):
                raise Interrupted
            try:
                written += os.write(self._descriptor, held[written : written + self._at_once])
            except OSError as gone:
                raise ReceiverGone(gone.strerror or str(gone)) from None
            while self._held_views and self._held_views[0][0] <= written:
                self.sent_count, self.last = self.sent_count + 1, self._held_views.popleft()[1]
        self._held.clear()

    def close(self) -> None:
        """No more."""
        os.close(self._descriptor)


def opened(text: str, *, as_lines: bool, overwrite: bool, interruption: Interruption) -> Destination:
    """The destination that is written so.

    Raises:
        CommandError: none, or it does not open.
    """
    frame = as_line if as_lines else prefixed
    try:
        if found := ADDRESS.fullmatch(text):
            kind, host, port = found[1], found[2].strip("[]"), int(found[3])
            if kind == "udp":
                if as_lines:
                    raise CommandError("--lines needs a stream or a file: a datagram is a record as it is")
                return DatagramDestination(_udp(host, port), interruption)
            stream = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each record at its time
            return StreamDestination(stream, frame, interruption)
        if text.startswith("unix:"):
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stream.connect(text.removeprefix("unix:"))
            return StreamDestination(stream, frame, interruption)
        if "://" in text:
            raise CommandError(f"--to {text!r} is no destination: {HOW}")
        return FileDestination(_file(text, overwrite=overwrite), frame, interruption)
    except (OSError, OverflowError) as refused:
        reason = refused.strerror if isinstance(refused, OSError) and refused.strerror else refused
        raise CommandError(f"--to {text}: {reason}; is the receiver there? {HOW}") from None


def _udp(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    sender = socket.socket(family, kind, protocol)
    sender.connect(address)
    return sender


def _file(text: str, *, overwrite: bool) -> int:
    if text == "-":
        sys.stdout.flush()
        return os.dup(sys.stdout.fileno())
    path = Path(text)
    if not overwrite and path.exists() and stat.S_ISREG(path.stat().st_mode):
        raise CommandError(f"--to {path} exists: give another name, or --overwrite")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
