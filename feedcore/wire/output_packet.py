"""The output packet: one datagram of one adapter's output stream, in the normalised second format.

Little-endian (docs/protocol.md clause 3): the header (`OUTPUT_LAYOUT`), the runs (`RUN_LAYOUT` each), the messages
(each a frame header, `FRAME_LAYOUT`, then an SBE message header and body). The header travels in clear and is
authenticated; runs and messages are sealed (`transport.sealing.sealing`). This codec sees only the plaintext. The
transport fills in `packet_counter`, `incarnation`, `key_id` and `sent_at_ns` when it seals.

Invariant: a packet that is not provisional covers the source messages `first_input_seq` … `end_input_seq - 1` of its
channel, whether or not they made messages.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from tandemfeed.feedcore.wire.layout import Layout
from tandemfeed.feedcore.wire.lineage import ENTRY_SIZE
from tandemfeed.feedcore.wire.position import SEQ_MAX, Run
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal

OUTPUT_MAGIC = int.from_bytes(b"TFO2", "little")
OUTPUT_VERSION = 2
OUTPUT_LAYOUT = Layout(
    ("magic", "I"),
    ("version", "B"),
    ("flags", "B"),  # OutputFlag bits
    ("feed_id", "H"),
    ("channel_id", "H"),
    ("adapter_id", "H"),
    ("session", "I"),  # trading day, YYYYMMDD
    ("epoch", "I"),
    ("key_id", "I"),  # the key that sealed it
    ("incarnation", "I"),  # the adapter's start; with packet_counter the nonce
    ("message_count", "H"),
    ("run_count", "H"),
    ("packet_counter", "Q"),
    ("first_message_seq", "Q"),  # in a heartbeat the next one
    ("first_input_seq", "Q"),  # of the first run; in a heartbeat the next one
    ("source_sent_at_ns", "Q"),  # the source's wall clock when it sent the newest source message in it; 0 if none
    ("sent_at_ns", "Q"),  # the adapter's wall clock
)
RUN_LAYOUT = Layout(
    ("source_stream_id", "H"),
    ("source_count", "H"),
    ("message_count", "H"),
    ("flags", "H"),
    ("first_source_seq", "Q"),
)
FRAME_LAYOUT = Layout(
    ("frame_length", "H"),  # including this header
    ("source_offset", "H"),  # the message's source message, counted from its run's first
)
OUTPUT_HEADER = OUTPUT_LAYOUT.struct
OUTPUT_HEADER_SIZE = OUTPUT_LAYOUT.size
RUN = RUN_LAYOUT.struct
RUN_SIZE = RUN_LAYOUT.size
OUTPUT_FRAME = FRAME_LAYOUT.struct
OUTPUT_FRAME_SIZE = FRAME_LAYOUT.size
SEAL_TAG_SIZE = 16
DECISION_TAG_SIZE = 16  # ends every datagram; only the feed's adapters can make it (protocol 3.4)
SEALING_SIZE = SEAL_TAG_SIZE + DECISION_TAG_SIZE  # what sealing adds to header and payload

DATAGRAM_SIZE_DEFAULT = 1472  # one Ethernet frame: 1500 minus the IPv4 and UDP headers
DATAGRAM_SIZE_MAX = 8192  # libzmq truncates longer datagrams at the receiver, and crashes sending much longer ones

RUN_FLAG_SOURCE_GAP = 1

_new_tuple = tuple.__new__


class OutputFlag(IntEnum):
    """Flag bits of an output packet. Not an IntFlag, because testing a bit of one takes 0.9 µs."""

    NONE = 0
    HEARTBEAT = 1  # no runs or messages; the header has the next numbers, the payload the sender's lineage
    RETRANSMISSION = 2  # from a journal
    FROM_ACTIVE = 4  # the sender held the epoch when it decided or repeated this
    PROVISIONAL = 8  # sent without a lease (on_silence = proceed)
    END_OF_STREAM = 16  # with HEARTBEAT: every source stream has ended, and everything is sent
    EPOCH_ENDED = 32  # with HEARTBEAT: the sender was active and ended its epoch at this input_seq
    ANNOUNCEMENT = 64  # runs without messages: decisions that await an acknowledgement


# The same bits as plain integers: arithmetic with enum members runs Python code, too slow for every packet.
HEARTBEAT_BIT = int(OutputFlag.HEARTBEAT)
RETRANSMISSION_BIT = int(OutputFlag.RETRANSMISSION)
FROM_ACTIVE_BIT = int(OutputFlag.FROM_ACTIVE)
PROVISIONAL_BIT = int(OutputFlag.PROVISIONAL)
END_OF_STREAM_BIT = int(OutputFlag.END_OF_STREAM)
EPOCH_ENDED_BIT = int(OutputFlag.EPOCH_ENDED)
ANNOUNCEMENT_BIT = int(OutputFlag.ANNOUNCEMENT)


class OutputPacket(NamedTuple):
    """A decoded (opened) output packet. A tuple, because it is created on the hot path of both sides.

    Attributes:
        first_input_seq: of the first run's first source message, or the next one in a heartbeat.
        first_message_seq: of the first message, or the next one in a heartbeat.
        source_sent_at_ns: the source's wall clock when it sent the newest source message in it; 0 if none.
        sent_at_ns: the adapter's wall clock (0 until the transport sends it).
        runs: the sequencing decisions, in order; their message counts add up to `message_count`.
        payload: runs and messages as bytes, as on the wire before sealing.
    """

    flags: int
    feed_id: int
    channel_id: int
    adapter_id: int
    session: int
    epoch: int
    first_input_seq: int
    first_message_seq: int
    message_count: int
    runs: tuple[Run, ...]
    source_sent_at_ns: int
    sent_at_ns: int
    payload: bytes

    @property
    def end_input_seq(self) -> int:
        """The packet's last `input_seq` plus one."""
        if not self.runs:
            return self.first_input_seq
        last = self.runs[-1]
        return last.first_input_seq + last.source_count

    @property
    def end_message_seq(self) -> int:
        """The packet's last `message_seq` plus one."""
        return self.first_message_seq + self.message_count

    @property
    def messages_offset(self) -> int:
        """Where the first message frame begins in `payload`."""
        return len(self.runs) * RUN_SIZE


def encode_runs(runs: tuple[Run, ...]) -> bytes:
    """Encode the runs, which begin a payload."""
    return b"".join(
        RUN.pack(
            run.source_stream_id,
            run.source_count,
            run.message_count,
            RUN_FLAG_SOURCE_GAP if run.is_source_gap else 0,
            run.first_source_seq,
        )
        for run in runs
    )


def encode_output_header(
    packet: OutputPacket, *, key_id: int, incarnation: int, packet_counter: int, sent_at_ns: int
) -> bytes:
    """The header's bytes."""
    # Unpacked in one step, because this runs twice for every packet that an adapter transmits.
    flags, feed, channel, adapter, session, epoch, input_seq, message_seq, count, runs, source_ns, _, _ = packet
    return OUTPUT_HEADER.pack(
        OUTPUT_MAGIC,
        OUTPUT_VERSION,
        flags,
        feed,
        channel,
        adapter,
        session,
        epoch,
        key_id,
        incarnation,
        count,
        len(runs),
        packet_counter,
        message_seq,
        input_seq,
        source_ns,
        sent_at_ns,
    )


def encode_output_packet(packet: OutputPacket) -> bytes:
    """The packet's plaintext bytes, header and payload; the inverse of `decode_output_packet`."""
    return (
        encode_output_header(packet, key_id=0, incarnation=0, packet_counter=0, sent_at_ns=packet.sent_at_ns)
        + packet.payload
    )


def decode_output_packet(datagram: bytes) -> OutputPacket:
    """Decode and check the plaintext bytes of an output packet.

    Raises:
        PacketRefused: with the reason.
    """
    if len(datagram) < OUTPUT_HEADER_SIZE:
        raise PacketRefused(Refusal.TRUNCATED, f"{len(datagram)} bytes; an output header has {OUTPUT_HEADER_SIZE}")
    return checked_output_packet(OUTPUT_HEADER.unpack_from(datagram), datagram[OUTPUT_HEADER_SIZE:])


def checked_output_packet(header: tuple[Any, ...], payload: bytes) -> OutputPacket:
    """Decode and check an output packet whose header was unpacked and whose payload was opened.

    Args:
        header: the fields of `OUTPUT_HEADER`.

    Raises:
        PacketRefused: with the reason.
    """
    (
        magic,
        version,
        flags,
        feed,
        channel,
        adapter,
        session,
        epoch,
        _key_id,
        _incarnation,
        count,
        run_count,
        _packet_counter,
        message_seq,
        input_seq,
        source_ns,
        sent_ns,
    ) = header
    if magic != OUTPUT_MAGIC:
        raise PacketRefused(Refusal.FOREIGN, f"magic {magic:#010x} is not an output packet's")
    if version != OUTPUT_VERSION:
        raise PacketRefused(Refusal.VERSION, f"output packet version {version}; expected {OUTPUT_VERSION}")
    if not (0 < message_seq <= SEQ_MAX and 0 < input_seq <= SEQ_MAX):
        raise PacketRefused(
            Refusal.MALFORMED, f"message_seq {message_seq} or input_seq {input_seq} is not from 1 to {SEQ_MAX}"
        )
    frame_count = 0 if flags & ANNOUNCEMENT_BIT else count
    runs = decode_runs(payload, run_count, count, epoch, input_seq, message_seq, frame_count)
    if bool(flags & HEARTBEAT_BIT) != (run_count == 0):
        raise PacketRefused(Refusal.MALFORMED, f"{run_count} runs with flags {flags:#04x}")
    if run_count == 0 and len(payload) % ENTRY_SIZE:
        raise PacketRefused(Refusal.MALFORMED, f"a heartbeat with {len(payload)} bytes of payload")
    if flags & ANNOUNCEMENT_BIT and len(payload) != run_count * RUN_SIZE:
        raise PacketRefused(Refusal.MALFORMED, f"an announcement of {run_count} runs with {len(payload)} bytes")
    return OutputPacket(
        flags, feed, channel, adapter, session, epoch, input_seq, message_seq, count, runs, source_ns, sent_ns, payload
    )


def decode_runs(
    payload: bytes,
    run_count: int,
    message_count: int,
    epoch: int,
    first_input_seq: int,
    first_message_seq: int,
    frame_count: int,
) -> tuple[Run, ...]:
    """Decode the runs that begin a payload: the inverse of `encode_runs`, with the header's count and first numbers.

    Args:
        frame_count: at least this many message frames must follow the runs.

    Raises:
        PacketRefused: TRUNCATED, MALFORMED.
    """
    if run_count * RUN_SIZE + frame_count * OUTPUT_FRAME_SIZE > len(payload):
        raise PacketRefused(Refusal.TRUNCATED, f"{run_count} runs and {frame_count} messages in {len(payload)} bytes")
    runs = []
    input_seq, message_seq = first_input_seq, first_message_seq
    for index in range(run_count):
        stream, source_count, messages, run_flags, first_source = RUN.unpack_from(payload, index * RUN_SIZE)
        if source_count == 0 or not 0 < first_source <= SEQ_MAX:
            raise PacketRefused(
                Refusal.MALFORMED, f"run {index} has source_count {source_count} and first source_seq {first_source}"
            )
        is_gap = run_flags & RUN_FLAG_SOURCE_GAP != 0
        # The named tuple's own constructor takes three times as long, and this runs for every packet.
        runs.append(
            _new_tuple(Run, (epoch, input_seq, message_seq, stream, first_source, source_count, messages, is_gap))
        )
        input_seq += source_count
        message_seq += messages
    if message_seq - first_message_seq != message_count:
        raise PacketRefused(
            Refusal.MALFORMED,
            f"the runs have {message_seq - first_message_seq} messages, but the header says {message_count}",
        )
    return tuple(runs)


def message_frames(packet: OutputPacket) -> list[tuple[int, int]]:
    """(offset, length) in `packet.payload` of each message frame, including its 4-byte frame header.

    Takes time per message: for rare partial overlaps and for tests, never for the hot path.

    Raises:
        PacketRefused: MALFORMED if the frames do not fill the payload exactly.
    """
    frames = []
    offset = packet.messages_offset
    for _ in range(packet.message_count):
        if offset + OUTPUT_FRAME_SIZE > len(packet.payload):
            raise PacketRefused(Refusal.MALFORMED, "a message frame begins past the end of the packet")
        length = OUTPUT_FRAME.unpack_from(packet.payload, offset)[0]
        if length < OUTPUT_FRAME_SIZE or offset + length > len(packet.payload):
            raise PacketRefused(Refusal.MALFORMED, f"frame length {length} at offset {offset}")
        frames.append((offset, length))
        offset += length
    if offset != len(packet.payload):
        raise PacketRefused(Refusal.MALFORMED, f"{len(packet.payload) - offset} bytes after the last message")
    return frames
