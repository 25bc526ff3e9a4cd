"""Where `replay` sends records: a socket or a file. Framing separates the records for the receiver.

Streams and files get a length (u32, little-endian) before each record, or one line per record; a UDP datagram is one
record. A wait for a slow receiver ends when the user interrupts; only a stream, which is then closed, can have received
part of a record.
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

from tandemfeed.journal.commands.options import CommandError
from tandemfeed.journal.commands.presentation import RecordView
from tandemfeed.journal.commands.streams import Interruption

LENGTH = struct.Struct("<I")
DATAGRAM_SIZE_MAX = 65_507  # RFC 768: 65,535 bytes less the headers of UDP and IPv4
CONNECT_TIMEOUT_S = 10.0
HELD_SIZE_MAX = 256 << 10  # of records buffered for a file
ADDRESS = re.compile(r"(tcp|udp)://(\[[^\]]+\]|[^:/]+):([0-9]{1,5})")
HOW = "write tcp://HOST:PORT, udp://HOST:PORT, unix:PATH, the name of a file, or - for stdout"


class Interrupted(Exception):
    """The user interrupted while the receiver was slow."""


class ReceiverGone(Exception):
    """The receiver accepts no more data; the text says why."""


class Destination(Protocol):
    """Takes records one by one.

    Attributes:
        sent_count: number of records sent completely.
        last: the last of these records.
    """

    sent_count: int
    last: RecordView | None

    def send(self, view: RecordView) -> None:
        """Send a record, or buffer it to send with the next ones.

        Raises:
            ReceiverGone, Interrupted, CommandError.
        """
        ...

    def flush(self) -> None:
        """Write all buffered records."""
        ...

    def close(self) -> None:
        """Close the destination."""
        ...


def prefixed(view: RecordView) -> bytes:
    """A record after its length."""
    return LENGTH.pack(len(view.record)) + view.record


def as_line(view: RecordView) -> bytes:
    """A record as a line of text."""
    return view.line().encode() + b"\n"


class StreamDestination:
    """A connected stream socket."""

    def __init__(self, stream: socket.socket, frame: Callable[[RecordView], bytes], interruption: Interruption) -> None:
        stream.setblocking(False)
        self._stream, self._frame, self._interruption = stream, frame, interruption
        self.sent_count = 0
        self.last: RecordView | None = None

    def send(self, view: RecordView) -> None:
        """Send the whole record, however slow the receiver."""
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
        """Does nothing: nothing is buffered."""

    def close(self) -> None:
        """Shut down the sending side, so that the receiver sees the end, and close."""
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
        """Send one datagram. Delivery is not confirmed."""
        if len(view.record) > DATAGRAM_SIZE_MAX:
            raise CommandError(
                f"record {view.index:#018x} has {len(view.record)} bytes; a datagram has at most {DATAGRAM_SIZE_MAX}: "
                "replay to tcp:// or unix:"
            )
        while True:
            try:
                self._sender.send(view.record)
                break
            except BlockingIOError:
                if not self._interruption.wait_writable(self._sender.fileno()):
                    raise Interrupted from None
            except ConnectionRefusedError:  # reports an earlier datagram: no receiver is listening; retry this one
                continue
            except OSError as gone:
                raise ReceiverGone(gone.strerror or str(gone)) from None
        self.sent_count, self.last = self.sent_count + 1, view

    def flush(self) -> None:
        """Does nothing: nothing is buffered."""

    def close(self) -> None:
        """Close the socket."""
        self._sender.close()


class FileDestination:
    """A file, a pipe, or stdout."""

    def __init__(self, descriptor: int, frame: Callable[[RecordView], bytes], interruption: Interruption) -> None:
        self._descriptor, self._frame, self._interruption = descriptor, frame, interruption
        # A writable descriptor accepts at least this much without blocking (pipe(7)).
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._at_once = HELD_SIZE_MAX if is_file else select.PIPE_BUF
        self._held = bytearray()
        self._held_views: deque[tuple[int, RecordView]] = deque()  # with the offset of each record's end in `_held`
        self.sent_count = 0
        self.last: RecordView | None = None

    def send(self, view: RecordView) -> None:
        """Buffer the record; write when the buffer is full."""
        self._held += self._frame(view)
        self._held_views.append((len(self._held), view))
        if len(self._held) >= HELD_SIZE_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the buffer."""
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
        """Close the file."""
        os.close(self._descriptor)


def opened(text: str, *, as_lines: bool, overwrite: bool, interruption: Interruption) -> Destination:
    """The destination that the text names.

    Raises:
        CommandError: the text names no destination, or it cannot be opened.
    """
    frame = as_line if as_lines else prefixed
    try:
        if found := ADDRESS.fullmatch(text):
            kind, host, port = found[1], found[2].strip("[]"), int(found[3])
            if kind == "udp":
                if as_lines:
                    raise CommandError("--lines needs a stream or a file; a datagram always holds one unchanged record")
                return DatagramDestination(_udp(host, port), interruption)
            stream = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each record at its time
            return StreamDestination(stream, frame, interruption)
        if text.startswith("unix:"):
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stream.connect(text.removeprefix("unix:"))
            return StreamDestination(stream, frame, interruption)
        if "://" in text:
            raise CommandError(f"--to {text!r} is not a destination; {HOW}")
        return FileDestination(_file(text, overwrite=overwrite), frame, interruption)
    except (OSError, OverflowError) as refused:
        reason = refused.strerror if isinstance(refused, OSError) and refused.strerror else refused
        raise CommandError(f"--to {text}: {reason}; is the receiver running? {HOW}") from None


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
        raise CommandError(f"--to {path}: the file exists; give another name, or --overwrite")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
