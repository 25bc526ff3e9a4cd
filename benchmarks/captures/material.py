"""Captures made for benchmarks: recordings that are repeated with continued numbers, and datagrams in a pcap file."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from tandemfeed.adapter.conversion.formats.captures.capture import CaptureReader, Datagram
from tandemfeed.adapter.convert_command.captures.header_kernels import SEQUENCE_PART
from tandemfeed.adapter.convert_command.captures.protocols import Protocol
from tandemfeed.adapter.convert_command.input.compressed import DecompressedFile

PCAP_HEADER = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1)  # nanoseconds, Ethernet
ETHERNET = bytes.fromhex("01005e000001 020000000001 0800")
INTERVAL_NS = 10_000
DESTINATION = bytes([233, 54, 12, 111]), 26_400


def recording(name: str) -> Path | None:
    """A recording in the folders that TANDEMFEED_TEST_DATA names; None: there is none."""
    folders = (Path(each) for each in os.environ.get("TANDEMFEED_TEST_DATA", "").split(os.pathsep) if each)
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def datagrams_of(path: Path) -> list[Datagram]:
    """The datagrams of a capture, compressed or not."""
    with DecompressedFile(path) as file:
        return list(CaptureReader(file))


def write_pcap(path: Path, payloads: Iterable[tuple[bytes, tuple[bytes, int]]], interval_ns: int = INTERVAL_NS) -> None:
    """Write a capture of UDP datagrams, each with its destination."""
    with path.open("wb") as file:
        file.write(PCAP_HEADER)
        for number, (payload, (address, port)) in enumerate(payloads):
            udp = struct.pack(">HHHH", 40_000, port, 8 + len(payload), 0)
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 0, 0, 1, 17, 0, bytes([10, 0, 0, 1]), address)
            seconds, fraction = divmod(number * interval_ns, 1_000_000_000)
            size = len(ETHERNET) + len(ip) + len(udp) + len(payload)
            file.write(struct.pack("<IIII", 1_577_700_000 + seconds, fraction, size, size))
            file.write(ETHERNET + ip + udp + payload)


def repeated(
    datagrams: list[Datagram], times: int, protocol: Protocol, step: int
) -> Iterator[tuple[bytes, tuple[bytes, int]]]:
    """Payloads of a recording, again and again, each time with higher sequence numbers.

    Args:
        step: added to the numbers each time.
    """
    start, size, is_big_endian, _ = protocol.parts[SEQUENCE_PART].tolist()
    place = slice(start, start + size)
    order: Literal["big", "little"] = "big" if is_big_endian else "little"
    for turn in range(times):
        for each in datagrams:
            payload = bytearray(each.payload)
            sequence = int.from_bytes(payload[place], order) + turn * step
            payload[place] = sequence.to_bytes(size, order)
            yield bytes(payload), (each.destination, each.destination_port)
