"""The two worker processes of the adapter benchmark: a bare pyzmq DGRAM forwarder, and one adapter's hot path.

The adapter is the real one (receivers, loop, engine as active, compiled conversion, output journal, sealing, sender)
without an admin server: it has a lease for the whole run. Both workers send through `CountingSender`, which reports
their progress to the load generator.
"""

from __future__ import annotations

import mmap
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.adapter.conversion import load_converter
from tandemfeed.adapter.loop import AdapterLoop
from tandemfeed.adapter.mailbox import Mailbox
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver, ZeromqSender
from tandemfeed.transport.process_shell import StopSignal
from tandemfeed.transport.scheduling import tune_for_low_latency
from tandemfeed.transport.sealing.announced_starts import SALT_SIZE, AnnouncedStart
from tandemfeed.transport.sealing.opening import Opener
from tandemfeed.transport.sealing.sealing import Sealer
from tandemfeed.transport.sealing.start_keys import SealingKey
from tandemfeed.transport.sealing.stream_signatures import SIGNATURE_MAGIC

INTERFACE = "127.0.0.1"
SOURCE_GROUP, OUTPUT_GROUP = "239.192.88.1:18001", "239.192.88.2:18002"
FEED_ID, SESSION, CHANNEL, STREAM = 1, 20261121, 1, 1
DOCUMENTS = Path(__file__).resolve().parent.parent / "deploy" / "examples" / "ticks"
PROGRESS = struct.Struct("<Q")
LEASE_NS = 3_600 * 1_000_000_000
HEARTBEAT_SIZE_MAX = 300  # bytes; every data packet of this load is larger than 1,000


class Progress:
    """The number of datagrams that a worker has sent, in a page of memory that both processes map."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    @property
    def count(self) -> int:
        """Datagrams sent so far."""
        value: int = PROGRESS.unpack_from(self._map)[0]
        return value

    @count.setter
    def count(self, value: int) -> None:
        PROGRESS.pack_into(self._map, 0, value)


class CountingSender(ZeromqSender):
    """A sender that counts its datagrams in the shared page."""

    def __init__(self, context: zmq.Context[Any], progress: Progress) -> None:
        super().__init__(context, INTERFACE)
        self._progress, self._sent = progress, 0

    def send(self, group: bytes, datagram: bytes) -> None:
        """Send, then count. Heartbeats and signatures do not count: the load generator does not cause them."""
        super().send(group, datagram)
        self._sent += len(datagram) > HEARTBEAT_SIZE_MAX and datagram[:4] != SIGNATURE_MAGIC
        self._progress.count = self._sent


def run_forwarder(progress_path: Path) -> None:
    """Send every received datagram unchanged."""
    context = Context()
    receiver = ZeromqReceiver(context, INTERFACE, SOURCE_GROUP)
    sender = CountingSender(context, Progress(progress_path))
    stop, group = StopSignal(), OUTPUT_GROUP.encode()
    poller = zmq.Poller()
    poller.register(receiver.socket, zmq.POLLIN)
    poller.register(stop.fileno(), zmq.POLLIN)
    _say_ready(receiver)
    while not stop.is_set:
        poller.poll()
        while (datagram := receiver.receive()) is not None:
            sender.send(group, datagram)
    context.destroy(linger=0)


def run_adapter(progress_path: Path) -> None:
    """One adapter's hot path, assembled as in `adapter.process`."""
    context = Context()
    converter = load_converter(
        DOCUMENTS / "source-format.xml", DOCUMENTS / "converter-table.xml", DOCUMENTS / "message-model.xml"
    )
    config = EngineConfig(FEED_ID, 1, SESSION, (ChannelConfig(CHANNEL, (STREAM,)),), lease_ttl_ns=LEASE_NS)
    counters, stop = CounterSet(), StopSignal()
    engine = AdapterEngine(config, {CHANNEL: converter}, counters, time.monotonic_ns())
    private_key = Ed25519PrivateKey.generate()
    start = AnnouncedStart(1, 1, bytes(SALT_SIZE), private_key.public_key().public_bytes_raw())
    sealer = Sealer(FEED_ID, start, private_key)
    sealer.use_key(SealingKey(1, CHANNEL, bytes(32), bytes(32)))
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as folder:
        journal = OutputJournal(Path(folder))
        source = ZeromqReceiver(context, INTERFACE, SOURCE_GROUP)
        loop = AdapterLoop(
            engine,
            counters,
            sources=[source],
            sender=CountingSender(context, Progress(progress_path)),
            groups={CHANNEL: OUTPUT_GROUP},
            sealer=sealer,
            opener=Opener(FEED_ID),
            journal=journal,
            mailbox=Mailbox(),
            peers=None,
            stop=stop,
            ask_server=lambda _request: None,
            on_report_due=lambda: None,
            report_interval_ns=100_000_000,
        )
        now_ns = time.monotonic_ns()
        loop.perform(engine.on_lease_granted(1, now_ns + LEASE_NS, now_ns)[:-1])  # all but the announcing heartbeat
        tune_for_low_latency()
        _say_ready(source)
        loop.run()
        loop.close()
        journal.close()
    context.term()


def _say_ready(receiver: ZeromqReceiver) -> None:
    """Report readiness when a probe has arrived: libzmq joins the group in its own thread, some time after bind."""
    receiver.socket.poll()
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"forwarder": run_forwarder, "adapter": run_adapter}[sys.argv[1]](Path(sys.argv[2]))
