"""One adapter against a bare DGRAM forwarder: datagram rate when saturated, and latency at 1,000 packets a second.

Source packets nearly fill a datagram (36 trades, 1,328 bytes); each becomes two output packets of about that size. The
two workers run in turn, A B A B, with the same load generator. It never has more datagrams in flight than fit into the
kernel's buffer, so that the benchmark measures work and not loss.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import zmq

from tandemfeed.benchmarks.forwarder import (
    DOCUMENTS,
    FEED_ID,
    INTERFACE,
    OUTPUT_GROUP,
    SESSION,
    SOURCE_GROUP,
    STREAM,
    Progress,
)
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver, ZeromqSender

TRADES_PER_PACKET = 36
OUTPUTS = {"forwarder": 1, "adapter": 2}  # output datagrams per source datagram
WINDOW = 40  # source datagrams in flight; the kernel's default buffer has room for some 90
FULL_WINDOW_PAUSE_S = 0.000_05
PROBE_MS = 20
SYMBOLS = 5_000
PREPARED = 4_096
WARM_UP = 2_000
LATENCY_PACKETS = 4_000
LATENCY_RATE = 1_000
WAIT_MS = 5_000


def _await_ready(process: subprocess.Popen[str], kind: str) -> None:
    """Send probes to the worker's group until it reports that it receives them; it may do anything with a probe."""
    assert process.stdout is not None
    context = Context()
    sender, poller = ZeromqSender(context, INTERFACE), zmq.Poller()
    poller.register(process.stdout.fileno(), zmq.POLLIN)
    while not poller.poll(PROBE_MS):
        sender.send(SOURCE_GROUP.encode(), b"?")
    context.destroy(linger=0)
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"the {kind} exited with status {process.wait()} before it was ready")


class Load:
    """Consecutive source datagrams. Bodies are prepared in advance; headers are encoded when sent."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        trade = load_source_format(DOCUMENTS / "source-format.xml").messages["trade"]
        count = PREPARED * TRADES_PER_PACKET
        symbols = np.array([b"S%d" % number for number in range(SYMBOLS)], "S8")
        rows = trade.encode(
            {
                "symbol": symbols[random.integers(0, SYMBOLS, count)],
                "price": random.integers(10**9, 10**12, count),
                "size": random.integers(1, 1_000, count),
            },
            count,
        )
        data, size = rows.tobytes(), trade.frame_size * TRADES_PER_PACKET
        self._bodies = [data[place * size : (place + 1) * size] for place in range(PREPARED)]
        self._number = 0

    def next(self) -> bytes:
        """The next datagram."""
        number = self._number
        self._number += 1
        header = encode_source_header(
            feed_id=FEED_ID,
            source_stream_id=STREAM,
            message_count=TRADES_PER_PACKET,
            session=SESSION,
            first_source_seq=1 + number * TRADES_PER_PACKET,
            sent_at_ns=time.time_ns(),
        )
        return header + self._bodies[number % PREPARED]


@contextmanager
def worker(kind: str, progress_path: Path) -> Iterator[Progress]:
    """Run a forwarder or adapter process; it is ready when the block begins."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tandemfeed.benchmarks.forwarder", kind, str(progress_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _await_ready(process, kind)
        yield Progress(progress_path)
    finally:
        process.terminate()
        process.wait(30)


def saturated_rate(kind: str, seconds: float, folder: Path) -> tuple[float, float]:
    """(source datagrams, output datagrams) per second through a saturated worker."""
    load, outputs = Load(), OUTPUTS[kind]
    context = Context()
    sender, group = ZeromqSender(context, INTERFACE), SOURCE_GROUP.encode()
    with worker(kind, folder / f"{kind}-{time.monotonic_ns()}") as progress:
        sent = 0

        def run(until_ns: int, count_max: int) -> None:
            nonlocal sent
            stuck_at_ns, done = time.monotonic_ns(), 0
            while time.monotonic_ns() < until_ns and sent < count_max:
                now_done = progress.count
                if now_done != done:
                    done, stuck_at_ns = now_done, time.monotonic_ns()
                elif time.monotonic_ns() - stuck_at_ns > WAIT_MS * 1_000_000:
                    raise RuntimeError(
                        f"the {kind} sent {done} of {sent * outputs} datagrams, then nothing for {WAIT_MS} ms"
                    )
                room = WINDOW - (sent - done // outputs)
                if room < WINDOW // 4:
                    time.sleep(FULL_WINDOW_PAUSE_S)  # spinning would take a core that the worker's threads need
                    continue
                for _ in range(room):
                    sender.send(group, load.next())
                    sent += 1

        run(time.monotonic_ns() + 60_000_000_000, WARM_UP)
        began_ns, done = time.monotonic_ns(), progress.count
        run(began_ns + int(seconds * 1e9), sys.maxsize)
        rate = (progress.count - done) * 1e9 / (time.monotonic_ns() - began_ns)
    context.destroy(linger=0)
    return rate / outputs, rate


def median_latency_us(kind: str, folder: Path) -> tuple[float, float]:
    """(median, p99) from sending a source datagram to the arrival of its last output datagram."""
    load, outputs = Load(), OUTPUTS[kind]
    context = Context()
    sender, group = ZeromqSender(context, INTERFACE), SOURCE_GROUP.encode()
    receiver = ZeromqReceiver(context, INTERFACE, OUTPUT_GROUP)
    took = []
    with worker(kind, folder / f"{kind}-{time.monotonic_ns()}"):
        period_ns, due_ns = 1_000_000_000 // LATENCY_RATE, time.monotonic_ns()
        for _ in range(LATENCY_PACKETS):
            due_ns = max(due_ns + period_ns, time.monotonic_ns() - period_ns)
            while (pause_ns := due_ns - time.monotonic_ns()) > 0:
                time.sleep(pause_ns / 2e9)
            datagram = load.next()
            sent_ns, heard = time.monotonic_ns(), 0
            sender.send(group, datagram)
            while heard < outputs:
                if not receiver.socket.poll(WAIT_MS):
                    raise RuntimeError(f"the {kind} sent nothing for {WAIT_MS} ms: a datagram was lost")
                while (output := receiver.receive()) is not None:
                    heard += len(output) > 200  # not a heartbeat
            took.append((time.monotonic_ns() - sent_ns) / 1_000)
    context.destroy(linger=0)
    took.sort()
    return statistics.median(took), took[len(took) * 99 // 100]


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure both workers in turn, `arguments.pairs` times, for `arguments.seconds` each."""
    pairs, seconds = getattr(arguments, "pairs", 5), getattr(arguments, "seconds", 3.0)
    rates: dict[str, list[tuple[float, float]]] = {"forwarder": [], "adapter": []}
    latencies: dict[str, list[tuple[float, float]]] = {"forwarder": [], "adapter": []}
    with tempfile.TemporaryDirectory(prefix="tandemfeed-bench-") as folder:
        for pair in range(pairs):
            for kind in rates:
                rates[kind].append(saturated_rate(kind, seconds, Path(folder)))
            sys.stderr.write(
                f"pair {pair + 1}/{pairs}: forwarder {rates['forwarder'][-1][1]:,.0f}, "
                f"adapter {rates['adapter'][-1][1]:,.0f} datagrams/s\n"
            )
        for pair in range(3):
            for kind in latencies:
                latencies[kind].append(median_latency_us(kind, Path(folder)))
            sys.stderr.write(
                f"latency {pair + 1}/3: forwarder {latencies['forwarder'][-1][0]:.0f}, "
                f"adapter {latencies['adapter'][-1][0]:.0f} µs median\n"
            )
    ratios = [a[1] / f[1] for a, f in zip(rates["adapter"], rates["forwarder"], strict=True)]
    source_ratios = [a[0] / f[0] for a, f in zip(rates["adapter"], rates["forwarder"], strict=True)]
    latency_ratios = [a[0] / f[0] for a, f in zip(latencies["adapter"], latencies["forwarder"], strict=True)]
    adapter_rate = statistics.median(rate for _, rate in rates["adapter"])
    return {
        "rate_ratio": round(statistics.median(ratios), 3),
        "source_rate_ratio": round(statistics.median(source_ratios), 3),
        "latency_ratio": round(statistics.median(latency_ratios), 3),
        "forwarder_datagrams_per_s": round(statistics.median(rate for _, rate in rates["forwarder"])),
        "adapter_datagrams_per_s": round(adapter_rate),
        "adapter_messages_per_s": round(adapter_rate / OUTPUTS["adapter"] * TRADES_PER_PACKET),
        "forwarder_latency_us": {
            "p50": round(statistics.median(p50 for p50, _ in latencies["forwarder"]), 1),
            "p99": round(statistics.median(p99 for _, p99 in latencies["forwarder"]), 1),
        },
        "adapter_latency_us": {
            "p50": round(statistics.median(p50 for p50, _ in latencies["adapter"]), 1),
            "p99": round(statistics.median(p99 for _, p99 in latencies["adapter"]), 1),
        },
    }
