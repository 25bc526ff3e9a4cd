"""What `bench captures` measures: a file, the conversion of it, and an independent decoder of the same messages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import databento_dbn
import numpy as np
from iex_parser.messages import TOPS_1_6
from iex_parser.parser import DeepPcapReader
from itch.parser import MessageParser
from sbedecoder import MDPMessageFactory, MDPSchema
from scapy.all import PcapReader
from zstandard import ZstdDecompressor

from tandemfeed.adapter.conversion import ConverterTable
from tandemfeed.adapter.conversion.formats import document
from tandemfeed.adapter.conversion.formats.files.binary_file import LENGTH_SIZE, read_binary_file
from tandemfeed.adapter.conversion.formats.files.dbn import read_dbn
from tandemfeed.adapter.conversion.formats.frames.frame_walk import FrameWalk
from tandemfeed.adapter.conversion.formats.packets.iex_tp import decode_iex_segment
from tandemfeed.adapter.conversion.formats.packets.mdp3 import decode_mdp_packet
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import encode_mold_packet
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.convert_command.captures.protocols import iex_tp, mdp3
from tandemfeed.benchmarks.captures.material import DESTINATION, datagrams_of, recording, repeated, write_pcap
from tandemfeed.benchmarks.conversion import itch_messages

MESSAGES = 500_000  # of each material, or a few more
DECODED_MAX = 60_000  # messages that a decoder in Python reads in each turn
PER_PACKET = 30  # ITCH messages, so that a datagram has about 1,100 bytes
DATAGRAM_MAX = 8_192  # of outputs: all entries of a CME message fit


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison.

    Attributes:
        path, reader, table, count: what is converted, and how many messages it has.
        decode: the other decoder's task: `decoded_count` messages of the same material as Python objects.
    """

    name: str
    material: str
    path: Path
    reader: str
    table: ConverterTable
    count: int
    decoder: str
    decode: Callable[[], object]
    decoded_count: int


def shipped(name: str) -> ConverterTable:
    """A shipped format's table."""
    return load_checked_table(document(f"{name}.xml"), document(f"{name}-to-tick.xml"), document("tick.xml"))


def itch(folder: Path) -> Case | str:
    """NASDAQ ITCH in MoldUDP64; itchfeed reads the same messages from a file."""
    path, table = recording("itch50/12302019_SNIPPET.NASDAQ_ITCH50"), shipped("itch50")
    if path is None:
        frames, material = itch_messages(MESSAGES // 4), "generated orders, repeated"
    else:
        with path.open("rb") as file:
            frames = [each.frames for each in read_binary_file(file, table.source_format, 1)]
        material = "a recording of the 2019-12-30 opening, repeated"
    bodies = [frame[LENGTH_SIZE:] for frame in frames]
    times = -(-MESSAGES // len(bodies))
    everything = bodies * times
    packets = (
        (encode_mold_packet(b"S", first + 1, everything[first : first + PER_PACKET]), DESTINATION)
        for first in range(0, len(everything), PER_PACKET)
    )
    write_pcap(folder / "itch.pcap", packets)
    data = b"".join(frames * (DECODED_MAX // len(frames) or 1))
    count = len(frames) * (DECODED_MAX // len(frames) or 1)

    def decode() -> None:
        assert sum(1 for _ in MessageParser().parse_file(BytesIO(data))) == count

    return Case("itch", material, folder / "itch.pcap", "moldudp64", table, len(everything), "itchfeed", decode, count)


def iex(folder: Path) -> Case | str:
    """IEX TOPS in IEX-TP; iex-parser reads the recording itself."""
    path = recording("iex/TOPS16.pcapng.gz")
    if path is None:
        return "no recording iex/TOPS16.pcapng.gz"
    datagrams = datagrams_of(path)
    count = sum(decode_iex_segment(each.payload).message_count for each in datagrams)
    times = -(-MESSAGES // count)
    table = shipped("iex")
    protocol = iex_tp(table.source_format)
    write_pcap(folder / "iex.pcap", repeated(datagrams, times, protocol, count))
    write_pcap(folder / "once.pcap", repeated(datagrams, 1, protocol, count))

    def decode() -> None:
        reader = DeepPcapReader(PcapReader(str(folder / "once.pcap")), TOPS_1_6, 1_000_000)
        assert len(list(reader)) == count

    return Case(
        "iex", "a recording of TOPS 1.6, repeated", folder / "iex.pcap", "iex-tp", table, count * times,
        "iex-parser", decode, count,
    )  # fmt: skip


def cme(folder: Path) -> Case | str:
    """CME MDP 3.0, both lines; sbedecoder reads the messages of one line."""
    path, schema_path = recording("cme/v1.6-v6.1.pcap"), recording("templates_FixBinary.xml")
    if path is None or schema_path is None:
        return "no recording cme/v1.6-v6.1.pcap, or no schema templates_FixBinary.xml"
    shutil.copy(document("mdp3.xml"), folder / "mdp3.xml")
    shutil.copy(schema_path, folder / "templates_FixBinary.xml")
    table = load_checked_table(folder / "mdp3.xml", document("mdp3-to-tick.xml"), document("tick.xml"), DATAGRAM_MAX)
    datagrams = datagrams_of(path)
    line = min(each.where for each in datagrams)
    packets = [decode_mdp_packet(each.payload) for each in datagrams if each.where == line]
    count, step = sum(each.message_count for each in packets), packets[-1].sequence - packets[0].sequence + 1
    times = -(-MESSAGES // count)
    write_pcap(folder / "cme.pcap", repeated(datagrams, times, mdp3(table.source_format), step))
    schema = MDPSchema()
    schema.parse(str(schema_path))
    factory, walk = MDPMessageFactory(schema), FrameWalk(table.source_format.framing)
    messages = [message for each in packets for message in messages_in(each.frames, walk)]

    def decode() -> None:
        for message in messages:
            decoded, _ = factory.build(message, 0)
            for field in decoded.fields:
                field.value  # noqa: B018  it is decoded when it is read
            for group in decoded.groups:
                for entry in group.repeating_groups:
                    for field in entry.fields:
                        field.value  # noqa: B018

    return Case(
        "cme", "a recording of both lines, repeated", folder / "cme.pcap", "mdp3", table, count * times, "sbedecoder",
        decode, count,
    )  # fmt: skip


def messages_in(frames: bytes, walk: FrameWalk) -> Iterator[bytes]:
    """The messages of a packet, one by one."""
    view, at = np.frombuffer(frames, np.uint8), 0
    while at < len(frames):
        end, _ = walk.skip(view, at, 1)
        yield frames[at:end]
        at = end


def dbn(folder: Path) -> Case | str:
    """Databento's own binding hands out a Python object per record."""
    path = recording("futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst")
    if path is None:
        return "no recording futures/esh4-glbx-mdp3-20231224.mbo.dbn.zst"
    raw = ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True).read()
    file = read_dbn(raw)
    records, count = file.records, sum(each.message_count for each in file.chunks())
    mappings = sum(len(each.intervals) for each in file.metadata.mappings) if file.metadata else 0
    times = -(-MESSAGES // count)
    data = raw[: len(raw) - len(records)] + records * times
    (folder / "day.dbn").write_bytes(data)

    def decode() -> None:
        decoder = databento_dbn.DBNDecoder()
        decoder.write(data)
        assert len(decoder.decode()) == count * times + 1

    return Case(
        "dbn", "a recording of market by order, repeated", folder / "day.dbn", "dbn", shipped("dbn"),
        count * times + mappings, "databento-dbn", decode, count * times,
    )  # fmt: skip


CASES: dict[str, Callable[[Path], Case | str]] = {"itch": itch, "iex": iex, "cme": cme, "dbn": dbn}
