"""Packets for tests of the merge, and a listener that records the merge's effects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import Deliver, Filled, MergeEffect, RequestReplay
from tandemfeed.feedcore.merge.merger import StreamMerger
from tandemfeed.feedcore.wire.lineage import EpochStart, Lineage
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OutputFlag, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.packet_parts import identified_messages
from tandemfeed.feedcore.wire.position import Run

MS = 1_000_000
CHANNEL = 1
FIRST = ((1, 1),)  # epoch 1 begins with the first source message
Source = tuple[int, int]  # source_stream_id, source_seq


def body_of(stream: int, source_seq: int) -> bytes:
    """The body of the message made from a source message."""
    return b"%d:%d" % (stream, source_seq) + b"x" * (source_seq % 3)


def packet(
    first: int,
    sources: Sequence[Source],
    *,
    first_input: int | None = None,
    silent: Collection[Source] = (),
    adapter: int = 1,
    epoch: int = 1,
    flags: int = OutputFlag.NONE,
    tail: bytes = b"",
) -> OutputPacket:
    """A packet with messages from `first` on, one for each source message; consecutive ones of a stream are one run.

    Args:
        first_input: the first `input_seq`; None: the same number as the first message.
        silent: source messages that make no message.
        tail: appended to each message body, to forge it.
    """
    runs: list[Run] = []
    frames = b""
    message_seq = first
    for input_seq, (stream, source_seq) in enumerate(sources, first if first_input is None else first_input):
        if not runs or (runs[-1].source_stream_id, runs[-1].end_source_seq) != (stream, source_seq):
            runs.append(Run(epoch, input_seq, message_seq, stream, source_seq, 0, 0))
        run, has_message = runs[-1], (stream, source_seq) not in silent
        runs[-1] = run._replace(source_count=run.source_count + 1, message_count=run.message_count + has_message)
        if has_message:
            body = body_of(stream, source_seq) + tail
            frames += OUTPUT_FRAME.pack(OUTPUT_FRAME.size + len(body), source_seq - run.first_source_seq) + body
            message_seq += 1
    return OutputPacket(
        flags, 1, CHANNEL, adapter, 20261121, epoch, runs[0].first_input_seq, first, message_seq - first, tuple(runs),
        0, 0, encode_runs(tuple(runs)) + frames,
    )  # fmt: skip


def line(first_seq: int, last_seq: int, stream: int = 1, base: int = 0) -> list[Source]:
    """Source messages of one stream whose `source_seq` is the `message_seq` minus `base`."""
    return [(stream, seq - base) for seq in range(first_seq, last_seq + 1)]


def lineage_of(starts: Iterable[Sequence[int]]) -> Lineage:
    """A lineage, each epoch given as (epoch, first number) or (epoch, first input_seq, first message_seq)."""
    return Lineage(tuple(EpochStart(each[0], each[1], each[-1]) for each in starts))


def heartbeat(
    next_seq: int,
    lineage: Iterable[Sequence[int]] = FIRST,
    *,
    next_message: int | None = None,
    adapter: int = 1,
    epoch: int | None = None,
    flags: int = OutputFlag.NONE,
) -> OutputPacket:
    """A heartbeat. `next_seq` gives both numbers, unless `next_message` is given."""
    history = lineage_of(lineage)
    at = history.epoch if epoch is None else epoch
    next_message = next_seq if next_message is None else next_message
    return OutputPacket(
        OutputFlag.HEARTBEAT | flags, 1, CHANNEL, adapter, 20261121, at, next_seq, next_message, 0, (), 0, 0,
        history.encode(1_000),
    )  # fmt: skip


# Gives the merge a lineage and nothing else: it is neither a sign of life, nor do its numbers count.
FIRST_LINEAGE = heartbeat(1, adapter=99, flags=OutputFlag.PROVISIONAL | OutputFlag.RETRANSMISSION)


class Listener:
    """A merger and a record of its effects.

    Args:
        knows_lineage: the merger knows epoch 1's lineage from the beginning.
    """

    def __init__(
        self, config: MergerConfig | None = None, start: int | None = 1, *, knows_lineage: bool = True
    ) -> None:
        self.counters = CounterSet()
        self.merger = StreamMerger(CHANNEL, self.counters, config, start)
        self.now_ns = 0
        self.effects: list[MergeEffect] = []
        self.delivered: list[Source] = []  # in order of delivery, late ones included
        self.newest: dict[int, int] = {}  # by stream, the newest source_seq delivered in order
        self.requests: list[RequestReplay] = []
        if knows_lineage:
            self.hear(FIRST_LINEAGE)

    def hear(self, *packets: OutputPacket) -> list[MergeEffect]:
        """Feed in packets; returns all effects."""
        found: list[MergeEffect] = []
        for each in packets:
            found += self._take(self.merger.on_packet(each, self.now_ns))
        return found

    def wait(self, duration_ns: int, jitter: float = 0.0) -> list[MergeEffect]:
        """Let time pass from deadline to deadline; returns all effects."""
        found: list[MergeEffect] = []
        end_ns = self.now_ns + duration_ns
        while (at_ns := self.merger.next_deadline_ns()) is not None and at_ns <= end_ns:
            self.now_ns = max(self.now_ns, at_ns)
            found += self._take(self.merger.on_timer(self.now_ns, jitter))
        self.now_ns = end_ns
        return found

    def events(self, *kinds: type) -> list[MergeEffect]:
        """All effects of these types so far."""
        return [effect for effect in self.effects if isinstance(effect, kinds)]

    def count(self, counter: Counter) -> int:
        """The value of a counter."""
        return self.counters.counts[counter]

    def _take(self, effects: list[MergeEffect]) -> list[MergeEffect]:
        for effect in effects:
            if isinstance(effect, Deliver | Filled):
                span = (effect.packet.first_input_seq, effect.packet.end_input_seq)
                for _, stream, source_seq, _, body in identified_messages(effect.packet, *span):
                    assert body == body_of(stream, source_seq)
                    if isinstance(effect, Deliver):
                        newest = self.newest.get(stream, 0)
                        assert source_seq > newest, f"stream {stream}: {source_seq} after {newest}"
                    self.newest[stream] = max(self.newest.get(stream, 0), source_seq)
                    self.delivered.append((stream, source_seq))
            elif isinstance(effect, RequestReplay):
                self.requests.append(effect)
        self.effects += effects
        return effects
