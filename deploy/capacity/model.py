"""The arithmetic of capacity: a load and measured costs in, counts of processes and bandwidths out. Pure.

Every figure is a mean that must hold in the peak second, so processors and links are planned to be used only in part
(`use`); shorter bursts wait in sockets' buffers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tandemfeed.feedcore.wire.output_packet import (
    DATAGRAM_SIZE_DEFAULT,
    DATAGRAM_SIZE_MAX,
    OUTPUT_HEADER_SIZE,
    RUN_SIZE,
    SEALING_SIZE,
)
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE
from tandemfeed.transport.sealing.source_sealing import SOURCE_SEAL_SIZE

WIRE_OVERHEAD = 66  # bytes of a datagram on the wire: preamble 8, Ethernet 14, IPv4 20, UDP 8, check sequence 4, gap 12
LINK_GBITS = (1, 10, 25, 40, 100, 200, 400)
PROCESS_CORES = 2  # of an adapter: its loop, and a core for the threads that send, journal and answer calls
SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be carried.

    Attributes:
        peak_per_s: source messages in the busiest second.
        daily: source messages of a day.
        source_bytes: mean size of a source message, with its framing.
        output_bytes: mean size of an output message, with its framing.
        backups: backup adapters of each feed.
        packet_messages: a source packet has at most so many messages.
        use: share of a processor or link that may be in use in the peak second.
        ahead_s: how long the source job may take for a day's messages; 0: it keeps up with the peak.
    """

    peak_per_s: float
    daily: float
    source_bytes: int
    output_bytes: int
    backups: int = 1
    packet_messages: int = 16
    datagram_size: int = DATAGRAM_SIZE_DEFAULT
    use: float = 0.5
    ahead_s: float = 0.0

    def __post_init__(self) -> None:
        checks = (
            ("the peak", self.peak_per_s, self.peak_per_s > 0, "positive"),
            ("the day's messages", self.daily, self.daily >= self.peak_per_s, "at least those of the peak second"),
            ("the use", self.use, 0 < self.use <= 1, "more than 0 and at most 1"),
            ("messages per packet", self.packet_messages, self.packet_messages > 0, "positive"),
            ("backups", self.backups, self.backups >= 0, "0 or more"),
            ("the datagram size", self.datagram_size, 576 <= self.datagram_size <= DATAGRAM_SIZE_MAX, "576 to 8192"),
            ("a source message", self.source_bytes, 0 < self.source_bytes <= self.source_room, "1 byte to a packet"),
            ("an output message", self.output_bytes, 0 < self.output_bytes <= self.output_room, "1 byte to a packet"),
        )
        for what, value, is_right, expected in checks:
            if not is_right:
                raise ValueError(f"{what} is {value:g}; it must be {expected}")

    @property
    def source_room(self) -> int:
        """Bytes for messages in a source packet."""
        return self.datagram_size - SOURCE_HEADER_SIZE - SOURCE_SEAL_SIZE

    @property
    def output_room(self) -> int:
        """Bytes for messages in an output packet of one run."""
        return self.datagram_size - OUTPUT_HEADER_SIZE - RUN_SIZE - SEALING_SIZE


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured, per core. The names of rates are those of `./run bench`."""

    adapter_datagrams_per_s: float
    decision_us: float
    client_copy_us: float
    client_message_us: float
    gateway_packet_us: float
    rows_per_s_local1: float

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ValueError(f"the cost {each.name} is {getattr(self, each.name)}; it must be positive")


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a load needs. Bandwidths are bits on the wire in the peak second.

    Attributes:
        feeds: into which the symbols are divided; each has one source stream, one channel and one gateway.
        adapters: processes of all feeds, active and backup.
        client_processes: of an application that reads everything; each reads some of the feeds.
        executor_cores: of the source job.
        journal_bytes_per_s: that each adapter of a feed writes in the peak second.
        journal_bytes_a_day: of all adapters.
    """

    feeds: int
    adapters: int
    adapter_cores: int
    groups: int
    source_packets_per_s: float
    output_packets_per_s: float
    source_bits_per_s: float
    output_bits_per_s: float
    adapter_bits_per_s: float
    client_bits_per_s: float
    gateway_cores: int
    executor_cores: int
    client_processes: int
    journal_bytes_per_s: float
    journal_bytes_a_day: float

    @property
    def client_link_gbits(self) -> int | None:
        """The link of a host that receives everything; None: no single link is fast enough."""
        return next((each for each in LINK_GBITS if each * 1e9 >= self.client_bits_per_s), None)


def capacity(load: Load, costs: Costs) -> Capacity:
    """What a load needs."""
    in_packet = min(load.packet_messages, load.source_room // load.source_bytes)
    source_packets = load.peak_per_s / in_packet
    # A source packet becomes as many output packets as its messages need; the last one is not full.
    output_packets = source_packets * math.ceil(in_packet / (load.output_room // load.output_bytes))
    messages_bytes = load.peak_per_s * load.output_bytes
    output_bytes = messages_bytes + output_packets * (load.datagram_size - load.output_room)
    copies = 1 + load.backups
    packet_us = 1e6 / costs.adapter_datagrams_per_s + (costs.decision_us if load.backups else 0.0)
    feeds = math.ceil(output_packets * packet_us / 1e6 / load.use)
    source_bytes = load.peak_per_s * load.source_bytes + source_packets * (load.datagram_size - load.source_room)
    source_bits = _bits(source_bytes, source_packets)
    output_bits = _bits(output_bytes, output_packets)
    client_us = output_packets * copies * costs.client_copy_us + load.peak_per_s * costs.client_message_us
    rows_per_s = load.daily / load.ahead_s if load.ahead_s else load.peak_per_s
    return Capacity(
        feeds=feeds,
        adapters=feeds * copies,
        adapter_cores=feeds * copies * PROCESS_CORES,
        groups=feeds * (1 + copies),
        source_packets_per_s=source_packets,
        output_packets_per_s=output_packets,
        source_bits_per_s=source_bits,
        output_bits_per_s=output_bits * copies,
        adapter_bits_per_s=(source_bits + output_bits * copies) / feeds,
        client_bits_per_s=output_bits * copies / load.use,
        gateway_cores=math.ceil(source_packets * costs.gateway_packet_us / 1e6 / load.use),
        executor_cores=math.ceil(rows_per_s / costs.rows_per_s_local1 / load.use),
        client_processes=math.ceil(client_us / 1e6 / load.use),
        journal_bytes_per_s=output_bytes / feeds,
        journal_bytes_a_day=output_bytes / load.peak_per_s * load.daily * copies,
    )


def _bits(packet_bytes: float, packets: float) -> float:
    return 8 * (packet_bytes + packets * WIRE_OVERHEAD)
