"""A small real cluster for tests: the admin server in this process, adapters as processes, source packets by hand."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.source_packet import SourceFlag, encode_source_header
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver, ZeromqSender
from tandemfeed.transport.sealing.stream_signatures import SIGNATURE_MAGIC
from tests.admin_server.cluster_files import EXAMPLES, Server

OUTPUT_GROUPS = {"a": "239.192.2.1:5011", "b": "239.192.2.2:5012"}
GROUPS = {1: b"239.192.1.1:5001", 2: b"239.192.1.2:5002"}
SESSION = 20261121
WAIT_S = 60.0
OWN_DOCUMENTS = {"source-format": EXAMPLES / "source-format.xml", "table": EXAMPLES / "converter-table.xml"}


class AdapterUnderTest:
    """One `tandemfeed adapter` process. It collects log lines, and tests can wait for them."""

    def __init__(
        self,
        server: Server,
        name: str,
        folder: Path,
        *,
        feed: str = "equities",
        admin: str | None = None,
        metrics_port: int = 0,
        is_awaited: bool = True,
        extra: Sequence[str] = (),
        has_own_documents: bool = True,
        prelude: str = "",
    ) -> None:
        """Args: prelude: Python code that the process runs first, such as a planted fault."""
        state = server.folder.path
        identity = f"adapter-{name}"
        self.logs: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        arguments = {
            "feed": feed,
            "name": name,
            **(OWN_DOCUMENTS if has_own_documents else {}),
            "journal": folder / f"journal-{name}",
            "tls-cert": state / "certs" / f"{identity}.crt",
            "tls-key": state / "certs" / f"{identity}.key",
            "admin": admin or server.endpoint,
            "ca": state / "ca.pem",
            "identity": identity,
            "secret-file": state / "secrets" / f"{identity}.secret",
            "metrics-port": metrics_port,
        }
        options = [text for key, value in arguments.items() for text in (f"--{key}", str(value))]
        options += extra
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"{prelude}\nfrom tandemfeed.adapter.cli import main; raise SystemExit(main())",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_logs, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        if not is_awaited:
            return
        line = self.process.stdout.readline()
        assert line, f"adapter {name} ended: {self.logs}"
        self.rpc = json.loads(line)["rpc"]

    def await_state(self, state: str) -> None:
        """Wait until the last change of state is to this state."""

        def is_there() -> bool:
            moves = [log for log in self.logs if log.get("event") == "state moved"]
            return bool(moves) and moves[-1]["new"] == state

        with self._changed:
            assert self._changed.wait_for(is_there, WAIT_S), self.logs

    def await_log(self, event: str) -> None:
        """Wait for a log line with this event."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(log.get("event") == event for log in self.logs), WAIT_S), (
                self.logs
            )

    def await_end(self) -> None:
        """Wait until every log line of a process that has ended has been read."""
        self._reader.join(WAIT_S)

    def moves(self) -> list[str]:
        """The states that it has entered, in order."""
        with self._changed:
            return [log["new"] for log in self.logs if log.get("event") == "state moved"]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def _read_logs(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                try:
                    self.logs.append(json.loads(line))
                except ValueError:
                    self.logs.append({"text": line})
                self._changed.notify_all()


def await_position(context: zmq.Context[Any], name: str, message_seq: int) -> None:
    """Wait until the packets of an adapter show that it has reached this `message_seq`."""
    receiver = ZeromqReceiver(context, "127.0.0.1", OUTPUT_GROUPS[name])
    heard = 0
    try:
        while heard < message_seq:
            assert receiver.socket.poll(WAIT_S * 1_000), f"adapter {name} is silent; it was at {heard}"
            datagram = receiver.receive()
            if datagram is not None and datagram[:4] != SIGNATURE_MAGIC:
                (first,) = struct.unpack_from("<Q", datagram, 40)
                heard = first + int.from_bytes(datagram[28:30], "little")
    finally:
        receiver.close()


class SourceByHand:
    """Sends trades on two source streams, and remembers every packet."""

    def __init__(
        self, context: zmq.Context[Any], *, feed_id: int = 1, groups: Mapping[int, bytes] | None = None
    ) -> None:
        self.context = context
        self.feed_id, self._groups = feed_id, groups or GROUPS
        self.sent: dict[int, list[bytes]] = {stream: [] for stream in self._groups}
        self._sender = ZeromqSender(context, "127.0.0.1")
        self._trade = load_source_format(EXAMPLES / "source-format.xml").messages["trade"]
        self.next_seq = dict.fromkeys(self._groups, 1)
        self.session = SESSION
        self.sent_at_ns = 1

    def begin_session(self) -> None:
        """Begin the next session, in which numbers start at 1 again."""
        self.session += 1
        self.next_seq = dict.fromkeys(self._groups, 1)

    def send(self, stream: int, count: int) -> bytes:
        """Send `count` trades in one packet."""
        return self.send_frames(stream, self.trades(stream, count))

    def trades(self, stream: int, count: int, symbol: bytes = b"AB") -> list[bytes]:
        """The next `count` trades of a stream as frames, without sending them; `symbol` begins their seven symbols."""
        numbers = np.arange(self.next_seq[stream], self.next_seq[stream] + count)
        symbols = np.array([b"%s%d" % (symbol, number % 7) for number in numbers])
        rows = self._trade.encode({"symbol": symbols, "price": numbers * 1_000, "size": numbers % 90 + 1}, count)
        return [row.tobytes() for row in rows]

    def send_frames(self, stream: int, frames: list[bytes], *, is_lost: bool = False) -> bytes:
        """Send any messages in one packet, under the next numbers of the stream; a lost one can only be requested."""
        header = encode_source_header(
            feed_id=self.feed_id,
            source_stream_id=stream,
            message_count=len(frames),
            session=self.session,
            first_source_seq=self.next_seq[stream],
            sent_at_ns=self.sent_at_ns,
        )
        self.next_seq[stream] += len(frames)
        datagram = header + b"".join(frames)
        self.sent[stream].append(datagram)
        if not is_lost:
            self.send_raw(stream, datagram)
        return datagram

    def beat(self, flags: SourceFlag = SourceFlag.NONE) -> None:
        """Send a heartbeat on each stream."""
        for stream, seq in self.next_seq.items():
            self.send_raw(
                stream,
                encode_source_header(
                    feed_id=self.feed_id,
                    source_stream_id=stream,
                    message_count=0,
                    session=self.session,
                    first_source_seq=seq,
                    sent_at_ns=1,
                    flags=SourceFlag.HEARTBEAT | flags,
                ),
            )

    def send_raw(self, stream: int, datagram: bytes) -> None:
        """Send any bytes to a stream's group."""
        self._sender.send(self._groups[stream], datagram)

    def close(self) -> None:
        """Close the socket."""
        self._sender.close()


def unknown_stream_packet() -> bytes:
    """A well-formed packet of a source stream that the feed does not have."""
    body = struct.pack("<8sQqIcBH", b"X", 1, 1, 1, b"B", 0, 0)
    header = encode_source_header(
        feed_id=1, source_stream_id=9, message_count=1, session=SESSION, first_source_seq=1, sent_at_ns=1
    )
    return header + struct.pack("<HH", 36, 1) + body
