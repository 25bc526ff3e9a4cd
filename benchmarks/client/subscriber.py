"""One subscriber of the benchmark, as an application would be; it prints its figures as JSON.

Latency is from the adapter's stamp on a datagram to the application. The bare receiver has the datagram then, neither
opened nor merged; the subscription has a batch of messages that were verified, merged and delivered once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tandemfeed.client_lib import Client
from tandemfeed.client_lib.commands.running import client_of
from tandemfeed.feedcore.wire.output_packet import OUTPUT_HEADER, OUTPUT_MAGIC
from tandemfeed.runtime.threads import end_process, start_thread
from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver
from tandemfeed.transport.process_shell import add_connection_arguments, connection_from
from tandemfeed.transport.scheduling import request_short_slices, tune_for_low_latency

WARM_UP_S = 1.0
SAMPLE_S = 1.0
TABLE_COUNT = 5_000  # messages
PAGE = 4_096
POLL_MS = 100
PRICES = {"TradeTick": "price", "QuoteTick": "bid_price", "OrderEvent": "price"}


def recover_arrays(feed: Client, options: argparse.Namespace) -> dict[str, object]:
    """History as numpy arrays, with the sum of a column."""

    def read() -> None:
        count, total = 0, 0
        for batch in feed.subscribe(feed=options.feed, start="first").batches():
            for _, rows in batch.arrays():
                total += int(rows["symbol"].nbytes)
            count += batch.message_count
            if count >= options.messages:
                return

    return _rates(read, options.messages)


def recover_tables(feed: Client, options: argparse.Namespace) -> dict[str, object]:
    """History as one numpy array for each type, of some thousand messages at a time, with the sum of a column."""

    def read() -> None:
        count, total = 0, 0
        subscription = feed.subscribe(feed=options.feed, start="first")
        while count < options.messages:
            batches = subscription.read(min(TABLE_COUNT, options.messages - count))
            for rows in batches.to_numpy().values():
                total += int(rows["symbol"].nbytes)
            count += batches.message_count

    return _rates(read, options.messages)


def recover_attributes(feed: Client, options: argparse.Namespace) -> dict[str, object]:
    """History as messages, with three attributes of each."""

    def read() -> None:
        messages = feed.subscribe(feed=options.feed, start="first")
        for _, message in zip(range(options.messages), messages, strict=False):
            _ = message.symbol, message.event_at, getattr(message, PRICES[type(message).__name__])

    return _rates(read, options.messages)


def _rates(read: Callable[[], None], count: int) -> dict[str, object]:
    wall_ns, processor_ns = time.monotonic_ns(), time.process_time_ns()
    read()
    wall_ns, processor_ns = time.monotonic_ns() - wall_ns, time.process_time_ns() - processor_ns
    return {"messages_per_s": int(count * 1e9 / wall_ns), "per_processor_s": int(count * 1e9 / processor_ns)}


def latency_client(feed: Client, options: argparse.Namespace) -> dict[str, object]:
    """The latencies of live batches."""
    took_ns: list[int] = []
    began_ns = time.monotonic_ns() + int(WARM_UP_S * 1e9)
    for batch in feed.subscribe(feed=options.feed, transport="multicast").batches():
        if (now_ns := time.monotonic_ns()) > began_ns and not batch.is_replayed:
            took_ns.append(time.time_ns() - batch.adapter_sent_at_ns)
            if now_ns > began_ns + options.seconds * 1e9:
                break
    return _latencies(took_ns)


def latency_bare(_feed: Client, options: argparse.Namespace) -> dict[str, object]:
    """The latencies of the datagrams with messages of one adapter."""
    context = Context()
    receiver = ZeromqReceiver(context, options.interface, options.group)
    took_ns: list[int] = []
    began_ns = time.monotonic_ns() + int(WARM_UP_S * 1e9)
    while (now_ns := time.monotonic_ns()) < began_ns + options.seconds * 1e9:
        receiver.socket.poll(POLL_MS)
        while (datagram := receiver.receive()) is not None:
            if len(datagram) >= OUTPUT_HEADER.size and now_ns > began_ns:
                magic, *_, message_count, _, _, _, _, _, sent_at_ns = OUTPUT_HEADER.unpack_from(datagram)
                if magic == OUTPUT_MAGIC and message_count:
                    took_ns.append(time.time_ns() - sent_at_ns)
    context.destroy(linger=0)
    return _latencies(took_ns)


def _latencies(took_ns: list[int]) -> dict[str, object]:
    ordered = sorted(took_ns)
    p99 = ordered[len(ordered) * 99 // 100]
    return {"p50_us": statistics.median(ordered) / 1e3, "p99_us": p99 / 1e3, "count": len(ordered)}


def memory(feed: Client, options: argparse.Namespace) -> dict[str, object]:
    """Resident memory over time, while messages are read."""
    samples: list[float] = []
    began_ns = sample_at_ns = time.monotonic_ns()
    for batch in feed.subscribe(feed=options.feed).batches():
        for _ in batch.messages():
            pass
        now_ns = time.monotonic_ns()
        if now_ns >= sample_at_ns:
            sample_at_ns += int(SAMPLE_S * 1e9)
            samples.append(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20)
        if now_ns > began_ns + options.seconds * 1e9:
            break
    part = max(len(samples) // 4, 1)
    return {
        "minutes": options.seconds / 60,
        "first_mib": round(samples[0], 1),
        "second_quarter_mib": round(statistics.median(samples[part : 2 * part] or samples), 1),
        "last_quarter_mib": round(statistics.median(samples[-part:]), 1),
    }


def many(feed: Client, options: argparse.Namespace) -> dict[str, object]:
    """What several subscriptions of one process cost, each read by a thread of its own, and their sockets."""
    counts: list[int] = []
    begin, end = threading.Event(), threading.Event()

    def read() -> None:
        count = 0
        for batch in feed.subscribe(feed=options.feed, transport="multicast").batches():
            count += batch.message_count if begin.is_set() else 0
            if end.is_set():
                break
        counts.append(count)

    threads = [start_thread(read, f"reader-{number}", end_process) for number in range(options.subscriptions)]
    time.sleep(WARM_UP_S)
    begin.set()
    wall_ns, processor_ns = time.monotonic_ns(), time.process_time_ns()
    time.sleep(options.seconds)
    wall_ns, processor_ns = time.monotonic_ns() - wall_ns, time.process_time_ns() - processor_ns
    sockets, thread_count = _multicast_sockets(), threading.active_count()
    end.set()
    for thread in threads:
        thread.join()
    return {
        "subscriptions": len(threads),
        "multicast_sockets": sockets,
        "threads": thread_count,
        "messages_per_s_of_each": int(min(counts) * 1e9 / wall_ns),
        "processor_share": round(processor_ns / wall_ns, 3),
    }


def _multicast_sockets() -> int:
    """How many UDP sockets of this process are bound to a group."""
    links = (os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    own = {link.removeprefix("socket:[").removesuffix("]") for link in links}
    return sum(line.split()[9] in own for line in Path("/proc/self/net/udp").read_text().splitlines()[1:])


KINDS = {
    "recover-arrays": recover_arrays,
    "recover-tables": recover_tables,
    "recover-attributes": recover_attributes,
    "latency-client": latency_client,
    "latency-bare": latency_bare,
    "memory": memory,
    "many": many,
}


def main() -> None:
    """Measure one thing."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--feed", required=True)
    parser.add_argument("--group")
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--subscriptions", type=int, default=10)
    add_connection_arguments(parser)
    options = parser.parse_args()
    connection = connection_from(parser, options)
    options.interface = connection.multicast.interface
    request_short_slices()
    with client_of(connection) as feed:
        tune_for_low_latency()
        found = KINDS[options.kind](feed, options)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
