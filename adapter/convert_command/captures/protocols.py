"""The protocols of captures, as the compiled walk reads their headers: MoldUDP64, IEX-TP, MDP 3.0, and any <packet>."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from tandemfeed.adapter.conversion.formats.captures.line_merge import HOLD_NS
from tandemfeed.adapter.conversion.formats.chunks import FormatError
from tandemfeed.adapter.conversion.formats.packets.framed_packets import PacketDecoder, VenuePacket
from tandemfeed.adapter.conversion.formats.packets.iex_tp import (
    IEX_TP_HEADER_SIZE,
    IEX_TP_VERSION,
    decode_iex_segment,
    stream_name,
)
from tandemfeed.adapter.conversion.formats.packets.mdp3 import MDP_HEADER_SIZE, MESSAGE_PREFIX_SIZE, decode_mdp_packet
from tandemfeed.adapter.conversion.formats.packets.moldudp64 import (
    END_OF_SESSION_COUNT,
    MOLD_HEADER_SIZE,
    decode_mold_packet,
)
from tandemfeed.adapter.convert_command.captures import header_kernels as kernels
from tandemfeed.adapter.convert_command.captures.keys import KEY_SIZE
from tandemfeed.adapter.convert_command.captures.rows import Words
from tandemfeed.feedcore.documents.source_layout import Framing, HeaderPart, SessionPart, SourceFormat

MDP_HOLD_NS = 5_000_000  # CME's lines differ by microseconds
LENGTH_ONLY = 2  # MoldUDP64 and IEX-TP allow empty messages, which are only a length
SESSION_SIZE_MAX = KEY_SIZE - kernels.GROUP_SIZE - 1  # a byte is a flag
PartPlace: TypeAlias = tuple[int, int, bool, int]  # offset, size, is big-endian, factor


@dataclass(frozen=True, slots=True)
class Protocol:
    """What the compiled walk must know of a protocol's datagrams.

    Attributes:
        parts, settings: of `read_headers`.
        decode: the decoder in Python; it raises FormatError, whose text is the reason, for what the walk leaves unread.
        session: the name of a session, from its bytes in the header; empty: the header has none.
        is_by_packet: packets are numbered, not messages.
        hold_ns: how long packets wait for earlier ones.
        packet: reads datagrams whose messages do not contain their length; None: the compiled walk reads them.
    """

    parts: Words
    settings: Words
    decode: Callable[[bytes], object]
    session: Callable[[bytes], str]
    is_by_packet: bool = False
    hold_ns: int = HOLD_NS
    packet: Callable[[bytes], VenuePacket] | None = None

    @property
    def stream_name_size(self) -> int:
        """Bytes of session and channel in the header; 0: the header does not name the stream."""
        return int(self.settings[kernels.SESSION_SIZE] + self.settings[kernels.CHANNEL_SIZE])

    def stream_name(self, payload: bytes) -> bytes:
        """These bytes of a datagram: the session's, then the channel's."""
        session, channel = int(self.settings[kernels.SESSION_AT]), int(self.settings[kernels.CHANNEL_AT])
        return (
            payload[session : session + int(self.settings[kernels.SESSION_SIZE])]
            + payload[channel : channel + int(self.settings[kernels.CHANNEL_SIZE])]
        )


def _parts(*sent: PartPlace, **places: PartPlace) -> Words:
    parts = np.zeros((kernels.SENT_PART + len(sent), 4), np.int64)
    for name, place in places.items():
        parts[getattr(kernels, f"{name.upper()}_PART")] = place
    for number, place in enumerate(sent):
        parts[kernels.SENT_PART + number] = place
    return parts


def _settings(source_format: SourceFormat, **values: int) -> Words:
    settings = np.zeros(kernels.SETTINGS, np.int64)
    settings[kernels.END_COUNT] = -1
    settings[kernels.LENGTH_UNIT] = 1
    settings[kernels.FRAME_FOUND] = source_format.framing.size_min
    for name, value in values.items():
        settings[getattr(kernels, name.upper())] = value
    return settings


def moldudp64(source_format: SourceFormat) -> Protocol:
    """MoldUDP64; messages with the number 0 are read too."""
    return Protocol(
        _parts(sequence=(10, 8, True, 1), count=(18, 2, True, 1)),
        _settings(
            source_format, header_size=MOLD_HEADER_SIZE, end_count=END_OF_SESSION_COUNT, session_at=0, session_size=10,
            has_unnumbered=1, length_size=2, is_big_endian=1, frame_adds=2, frame_least=LENGTH_ONLY,
        ),
        partial(decode_mold_packet, may_be_unnumbered=True),
        lambda session: session.decode("latin-1").strip(),
    )  # fmt: skip


def iex_tp(source_format: SourceFormat) -> Protocol:
    """IEX-TP; its streams are named by protocol, channel and session."""
    return Protocol(
        _parts(
            (32, 8, False, 1), version=(0, 1, False, 1), length=(12, 2, False, 1), count=(14, 2, False, 1),
            sequence=(24, 8, False, 1),
        ),
        _settings(
            source_format, header_size=IEX_TP_HEADER_SIZE, version=IEX_TP_VERSION, length_adds=IEX_TP_HEADER_SIZE,
            session_at=2, session_size=10, length_size=2, frame_adds=2, frame_least=LENGTH_ONLY,
        ),
        decode_iex_segment,
        lambda name: stream_name(*(int.from_bytes(part, "little") for part in (name[:2], name[2:6], name[6:]))),
    )  # fmt: skip


def mdp3(source_format: SourceFormat) -> Protocol:
    """CME MDP 3.0, which numbers packets; its header does not name the channel."""
    return Protocol(
        _parts((4, 8, False, 1), sequence=(0, 4, False, 1)),
        _settings(source_format, header_size=MDP_HEADER_SIZE, length_size=2, frame_least=MESSAGE_PREFIX_SIZE),
        decode_mdp_packet,
        lambda _: "",
        is_by_packet=True,
        hold_ns=MDP_HOLD_NS,
    )


def packets(source_format: SourceFormat) -> Protocol:
    """What a source format's <packet> describes.

    Raises:
        FormatError: it does not describe enough.
    """
    decoder = PacketDecoder(source_format)
    header, session, channel = decoder.header, decoder.header.session, decoder.header.channel
    session_size, channel_size = session.end - session.offset if session else 0, channel.size if channel else 0
    if session_size + channel_size > SESSION_SIZE_MAX:
        what = f"<session> and <channel> have {session_size + channel_size} bytes"
        raise FormatError(f"{source_format.document}: {what}; captures can have at most {SESSION_SIZE_MAX}")
    places = {"sequence": header.sequence, "count": header.count, "length": header.length}
    return Protocol(
        _parts(*map(_place, header.sent_at), **{name: _place(part) for name, part in places.items() if part}),
        _settings(
            source_format, header_size=header.size, length_adds=header.length_adds,
            end_count=-1 if header.end_of_session is None else header.end_of_session,
            session_at=session.offset if session else 0, session_size=session_size,
            channel_at=channel.offset if channel else 0, channel_size=channel_size,
            has_unnumbered=header.has_unnumbered, **_frames(source_format.framing),
        ),
        decoder.decode,
        lambda name: _name(session, channel, name),
        is_by_packet=header.counts_packets,
        hold_ns=MDP_HOLD_NS if header.counts_packets else HOLD_NS,
        packet=decoder.packet if source_format.framing.is_measured else None,
    )  # fmt: skip


def _place(part: HeaderPart) -> PartPlace:
    return part.offset, part.size, part.is_big_endian, part.unit_ns


def _frames(framing: Framing) -> dict[str, int]:
    return {
        "length_at": framing.length.offset,
        "length_size": framing.length.size,
        "is_big_endian": framing.is_big_endian,
        "length_unit": framing.length_unit,
        "frame_adds": framing.length_adds,
        "frame_least": max(framing.size_min, framing.length_adds + 1),
    }


def _name(session: SessionPart | None, channel: HeaderPart | None, name: bytes) -> str:
    """Channel and session, from their bytes in the header: the session's first."""
    size = session.end - session.offset if session else 0
    parts = [str(_number(channel, name[size:]))] if channel else []
    if session:
        text = name[:size].decode("latin-1").strip()
        parts.append(str(_number(session.number, name[:size])) if session.number else text)
    return " ".join(parts)


def _number(part: HeaderPart, octets: bytes) -> int:
    return int.from_bytes(octets, "big" if part.is_big_endian else "little")


PROTOCOLS: dict[str, Callable[[SourceFormat], Protocol]] = {
    "iex-tp": iex_tp,
    "mdp3": mdp3,
    "moldudp64": moldudp64,
    "packets": packets,
}
