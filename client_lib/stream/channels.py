"""The channels of one subscription: opened packets, replayed packets and grants in, items out. No socket, no thread.

Each channel has its trust (which packets to believe), its merge (which messages are next) and perhaps a filter. The
items of all channels wait in `ready`, in the order in which they are to be delivered. A peer's data never raises here:
refused packets are counted by reason.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tandemfeed.client_lib.items import Batch, BatchOfSeries, ChannelsChanged, Item, ModelChanged, SnapshotTaken
from tandemfeed.client_lib.items import Filled as FilledItem
from tandemfeed.client_lib.login.grant import Grant, GrantedSymbols
from tandemfeed.client_lib.losses.loss_watch import LossWatch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.reading.conflation import SnapshotIntake
from tandemfeed.client_lib.reading.cursor import Cursor
from tandemfeed.client_lib.replay.last_values import LastValues
from tandemfeed.client_lib.replay.locating import Beginning
from tandemfeed.client_lib.replay.worker import Replayed
from tandemfeed.client_lib.stream.filters.field_filter import FieldFilter
from tandemfeed.client_lib.stream.filters.symbol_filter import SymbolFilter
from tandemfeed.client_lib.stream.sockets.inbox import Arrival
from tandemfeed.client_lib.stream.starts import Start, first_message_of
from tandemfeed.client_lib.stream.statistics import ChannelStatistics
from tandemfeed.client_lib.stream.trust.stream_trust import StreamTrust, Verdict, VerifyMode
from tandemfeed.client_lib.stream.trust.vouching import Vouching
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.merge.config import MergerConfig
from tandemfeed.feedcore.merge.effects import (
    Deliver,
    DeliverSeries,
    Ended,
    Filled,
    MergeEffect,
    RequestReplay,
    SessionChanged,
    Takeover,
)
from tandemfeed.feedcore.merge.history.place import ResumePoint
from tandemfeed.feedcore.merge.sessions import SessionMerger
from tandemfeed.feedcore.pause_free_clock import PauseFreeClock
from tandemfeed.feedcore.wire.output_packet import RETRANSMISSION_BIT, OutputPacket
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal
from tandemfeed.transport.sealing.epoch_proofs import EpochProof
from tandemfeed.transport.sealing.opening import ReceivedPacket, ReceivedSignature


class Channels:
    """For the loop's thread.

    Args:
        grant: the first grant; later ones come by `change`.
        start: "live", "first", or the first message of each channel by topic.
        beginnings: of channels that begin there instead.
        snapshot_by: deliver only the newest message of each type and of each value of this field, until the stream is
            live; empty: deliver all.
        where: the values that fields of delivered messages have; see `FieldFilter`. Empty: any.
        last_values: of channels that begin with them instead; a snapshot of them needs no history.
        cursor: where to begin instead. Batches then know the history that their numbers belong to.
        request_replay: called with each request for what is missing.

    Attributes:
        clock: has the time by which trust and merge judge the adapters. The loop looks.
        grant: the present grant.
        decoder: for the feed's message model.
        topics: by channel, also of those that are not granted any more.
        ready: the items to deliver next.
        losses: notices what is missing.
    """

    def __init__(
        self,
        grant: Grant,
        counters: CounterSet,
        request_replay: Callable[[RequestReplay], None],
        *,
        start: Start,
        beginnings: Mapping[int, Beginning] = MappingProxyType({}),
        snapshot_by: str = "",
        last_values: Mapping[int, LastValues] = MappingProxyType({}),
        where: Mapping[str, Any],
        cursor: Cursor | None,
        verify: VerifyMode,
        merger_config: MergerConfig | None,
    ) -> None:
        self.grant, self.decoder = grant, _decoder_of(grant)
        self.topics: dict[int, str] = {}
        self.ready: deque[Item] = deque()
        self.losses = LossWatch(lambda: self.grant)
        self._counters, self._request_replay = counters, request_replay
        self._is_for_cursor = cursor is not None
        self._received_ns = time.monotonic_ns()
        self.clock = PauseFreeClock(self._received_ns)
        self._verify: VerifyMode = verify
        self._merger_config = merger_config
        self._trusts: dict[int, StreamTrust] = {}
        self._vouching = Vouching(grant, counters)
        self._mergers: dict[int, SessionMerger] = {}
        self._begun: dict[int, tuple[int, int, int]] = {}  # by channel: source messages that were handled in part
        self._filters: dict[int, SymbolFilter] = {}  # of the channels of which only some symbols are granted
        self._where = where
        self._field_filter = FieldFilter(self.decoder, where) if where else None
        self._filtered_symbols: Mapping[int, GrantedSymbols] = {}
        self._snapshots: dict[int, SnapshotIntake] = {}  # of channels whose snapshot is not complete
        self._ended: set[int] = set()
        self._deadline_ns: int | None = None
        self._is_deadline_old = True
        for channel_id, topic in grant.topics_by_channel.items():
            position = None if cursor is None else cursor.position(topic)
            if position is not None and position.next_input_seq:
                if position.begun is not None:
                    self._begun[channel_id] = position.begun
                if channel_id in beginnings:
                    self._begin(channel_id, beginnings[channel_id])
                else:
                    self._continue(channel_id, position.session, position.resume_point)
            elif channel_id in last_values:
                self._continue(channel_id, grant.session, last_values[channel_id].point)
            else:
                if channel_id in beginnings:
                    self._begin(channel_id, beginnings[channel_id])
                else:
                    self._add(channel_id, first_message_of(start, topic))
                if snapshot_by:
                    self._snapshots[channel_id] = SnapshotIntake(snapshot_by)
        self._apply(grant)
        for channel_id, values in last_values.items():
            self._deliver_last_values(channel_id, values)

    @property
    def have_ended(self) -> bool:
        """True once every channel has delivered the `Ended` event of its present session."""
        return len(self._ended) == len(self._mergers)

    @property
    def are_live(self) -> bool:
        """True if everything that is known of every channel was delivered."""
        return all(map(self._is_live, self._mergers))

    @property
    def missing_count(self) -> int:
        """Messages that are known to be missing. Any thread may call this."""
        return sum(merger.present.missing_message_count for merger in list(self._mergers.values()))

    def statistics(self) -> dict[int, ChannelStatistics]:
        """A snapshot, by channel. Any thread may call this."""
        return {
            channel_id: ChannelStatistics(
                self.topics[channel_id],
                merger.present.lineage.epoch,
                merger.present.next_input_seq,
                merger.present.next_message_seq,
                dict(merger.present.next_source_seqs),
                tuple(self._trusts[channel_id].distrusted()),
                merger.session,
                self._filtered_count(channel_id),
                merger.present.lineage.entries,
            )
            for channel_id, merger in list(self._mergers.items())
        }

    def _filtered_count(self, channel_id: int) -> int:
        by_symbol, by_field = self._filters.get(channel_id), self._field_filter
        counts = 0 if by_field is None else by_field.filtered_counts.get(channel_id, 0)
        return counts + (0 if by_symbol is None else by_symbol.filtered_count)

    # ---- packets and time ----

    def on_opened(self, opened: ReceivedPacket | ReceivedSignature | EpochProof, arrival: Arrival) -> bool:
        """Take what was opened for all subscriptions of the feed; False if this one refuses it.

        Args:
            arrival: its own.
        """
        clock, path = self.clock, arrival[1]
        self._received_ns = received_ns = time.monotonic_ns()
        now_ns = received_ns - clock.paused_ns  # as `clock.between`, without a call for every packet
        if now_ns > clock.limit_ns:
            now_ns = clock.limit_ns
        try:
            if isinstance(opened, ReceivedPacket):
                packet = opened.packet
                verdicts = self._trust_of(packet.channel_id, opened.key_id).on_packet(opened, now_ns, path)
                self.losses.on_packet(packet, opened.incarnation, opened.counter)
            elif isinstance(opened, ReceivedSignature):
                claimed = opened.claimed
                trust = self._trust_of(claimed.channel_id, claimed.key_id)
                verdicts = trust.on_signature(opened, now_ns, path, sender=arrival[2])
            else:
                self._vouching.on_proof(opened, arrival[2], now_ns)
                self._merge_released()
                return True
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)
            return False
        for verdict in verdicts:
            self._take(verdict, now_ns)
        return True

    def on_replayed(self, replayed: Replayed) -> None:
        """Take packets from an adapter's replay service."""
        self._received_ns = time.monotonic_ns()
        now_ns = self.clock.between(self._received_ns)
        for reason in replayed.refused:
            self._counters.refuse(reason)
        feed_id, adapter_id = self.grant.feed_id, replayed.adapter_id
        for part in replayed.parts:
            count = len(part) if isinstance(part, PacketSeries) else 1
            if part.feed_id != feed_id:
                self._counters.refuse(Refusal.WRONG_FEED, count)
            elif part.adapter_id != adapter_id:  # confirm=2 relies on each adapter replaying only its own packets
                self._counters.refuse(Refusal.FORGED, count)
            elif (trust := self._trusts.get(part.channel_id)) is None:
                self._counters.refuse(Refusal.WRONG_CHANNEL, count)
            elif not isinstance(part, PacketSeries):
                self._merge_replayed(trust, part, now_ns)
            elif self._vouching.beliefs[part.channel_id].believes_series(part, now_ns):
                trust.on_replayed_series(part)
                self._merge_series(part, now_ns)
            else:
                for packet in part.packets:
                    self._merge_replayed(trust, packet, now_ns)

    def on_replay_ended(self, request: RequestReplay, *, is_answered: bool) -> None:
        """The whole answer to a request has been passed in."""
        if (merger := self._mergers.get(request.channel_id)) is not None:
            merger.on_replay_ended(request, self.clock.between(time.monotonic_ns()), is_answered=is_answered)
            self._is_deadline_old = True

    def on_timer(self, now_ns: int) -> None:
        """Do what is due. Args: now_ns: by the clock of the channels."""
        self._received_ns = self.clock.monotonic_ns(now_ns)
        for trust in self._trusts.values():  # first, because it tells which adapters live
            for proved_at_ns, verdict in trust.on_timer(now_ns):
                self._take(verdict, proved_at_ns)
        for merger in self._mergers.values():
            self._perform(merger.on_timer(now_ns, random.random()))
        if self._snapshots:
            self._take_snapshots()

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer`, by the clock of the channels."""
        if self._is_deadline_old:  # most turns of an idle stream do not change it
            self._deadline_ns = earliest(*[merger.next_deadline_ns() for merger in self._mergers.values()])
            self._is_deadline_old = False
        return self._deadline_ns

    # ---- what is granted ----

    def change(self, grant: Grant) -> None:
        """Begin and end channels as a grant says; those that stay keep their merge."""
        present, wanted = self._mergers.keys(), grant.topics_by_channel.keys()
        added, removed = sorted(wanted - present), sorted(present - wanted)
        for channel_id in removed:
            self._remove(channel_id)
        for channel_id in added:
            self._add(channel_id, None, session=grant.session)
        if added or removed:
            former, now = self.grant.topics_by_channel, grant.topics_by_channel
            changed = ChannelsChanged(tuple(now[each] for each in added), tuple(former[each] for each in removed))
            self.ready.append(changed)
        if grant.message_model != self.grant.message_model:
            self.decoder = _decoder_of(grant)
            with suppress(ValueError):  # the new model lacks the field, so the former filter finds nothing
                self._field_filter = FieldFilter(self.decoder, self._where, self._field_filter) if self._where else None
            self.ready.append(ModelChanged(*grant.model_name))
        self._apply(grant)

    def revoke(self, topics: tuple[str, ...]) -> None:
        """End the channels of these topics."""
        for channel_id, topic in self.grant.topics_by_channel.items():
            if topic in topics:
                self._remove(channel_id)

    # ---- inside ----

    def _apply(self, grant: Grant) -> None:
        """Change filters and announced starts to match a grant."""
        symbols = grant.symbols_by_channel
        if symbols != self._filtered_symbols:
            self._filtered_symbols, former = symbols, self._filters
            self._filters = {
                channel_id: SymbolFilter(self.decoder.model, each.field, each.words, former.get(channel_id))
                for channel_id, each in symbols.items()
            }
        self.grant = grant
        self.topics.update(grant.topics_by_channel)
        starts = grant.starts
        for trust in self._trusts.values():
            trust.announce(starts)
        self._vouching.apply(grant, self.clock.now_ns)
        self._merge_released()

    def _judge(self, channel_id: int) -> None:
        """Begin to judge what is heard on a channel."""
        belief = self._vouching.add(channel_id)

        def may_extend(packet: OutputPacket) -> bool:
            return belief.may_extend(packet, self.clock.now_ns)

        self._trusts[channel_id] = StreamTrust(channel_id, self._counters, self._verify, may_extend)
        self._is_deadline_old = True

    def _add(self, channel_id: int, start_message_seq: int | None, session: int | None = None) -> None:
        self._judge(channel_id)
        self._mergers[channel_id] = SessionMerger(
            channel_id, session or self.grant.session, self._counters, self._merger_config, start_message_seq
        )

    def _continue(self, channel_id: int, session: int, point: ResumePoint) -> None:
        """Begin a channel where an earlier merge or a snapshot ended."""
        self._judge(channel_id)
        self._mergers[channel_id] = SessionMerger(
            channel_id, session, self._counters, self._merger_config, point.place.message_seq, point
        )

    def _begin(self, channel_id: int, at: Beginning) -> None:
        """Begin a channel where adapters located it, perhaps in a session that is over."""
        self._judge(channel_id)
        self._mergers[channel_id] = SessionMerger(
            channel_id, at.session, self._counters, self._merger_config, at.message_seq, former=at.former
        )
        if at.former:
            self.losses.note_history(channel_id, at.former[0].session, at.session)

    def _deliver_last_values(self, channel_id: int, values: LastValues) -> None:
        """A snapshot as an adapter has it, and then an empty batch, with which a cursor moves to where it ends."""
        unix_ns = time.time_ns()
        batches = [self._batch(packet, unix_ns) for packet in values.packets]
        for batch in batches:
            batch.moves_cursor = False
        wanted = [batch for batch in batches if batch.message_count]
        end = Batch(values.end(), unix_ns, self._received_ns, self.decoder)
        end.lineage, end.skipped = values.point.lineage, values.point.next_source_seqs
        message_count = sum(batch.message_count for batch in wanted)
        self.ready += (*wanted, end, SnapshotTaken(channel_id, message_count, values.point.place.message_seq))

    def _remove(self, channel_id: int) -> None:
        self._mergers.pop(channel_id, None)
        self._is_deadline_old = True
        self._trusts.pop(channel_id, None)
        self._vouching.remove(channel_id)
        self._snapshots.pop(channel_id, None)
        self._ended.discard(channel_id)

    def _trust_of(self, channel_id: int, key_id: int) -> StreamTrust:
        """Another subscription of the process may still have, or have already, what this one is not granted."""
        if key_id not in self.grant.keys:
            raise PacketRefused(Refusal.UNKNOWN_KEY, f"key {key_id} of channel {channel_id} is unknown")
        try:
            return self._trusts[channel_id]
        except KeyError:
            raise PacketRefused(Refusal.WRONG_CHANNEL, f"channel {channel_id} is not granted") from None

    def _take(self, verdict: Verdict, now_ns: int) -> None:
        if not isinstance(verdict, OutputPacket):
            self.ready.append(verdict)
            return
        if self._vouching.beliefs[verdict.channel_id].asks_who_lives(verdict, now_ns):
            self._look_who_lives(verdict.channel_id, now_ns)
        self._merge(verdict, now_ns)

    def _look_who_lives(self, channel_id: int, now_ns: int) -> None:
        """Verify the signatures that were postponed, so that an adapter that lives is not taken for silent."""
        for proved_at_ns, verdict in self._trusts[channel_id].on_timer(now_ns):
            if isinstance(verdict, OutputPacket):
                self._merge(verdict, proved_at_ns)
            else:
                self.ready.append(verdict)

    def _merge(self, packet: OutputPacket, now_ns: int) -> None:
        belief = self._vouching.beliefs[packet.channel_id]
        believed = belief.believed(packet, now_ns)
        if believed is not None:
            self._perform(self._mergers[packet.channel_id].on_packet(believed, now_ns))
        if belief.released:
            self._merge_released()
        if self._snapshots:
            self._take_snapshots()

    def _merge_replayed(self, trust: StreamTrust, packet: OutputPacket, now_ns: int) -> None:
        believed = self._vouching.beliefs[packet.channel_id].believed(packet, now_ns)
        if believed is not None:
            trust.on_replayed(believed)
            self._perform(self._mergers[packet.channel_id].on_packet(believed, now_ns))
            if self._snapshots:
                self._take_snapshots()

    def _merge_released(self) -> None:
        """Merge what was held until it could be believed."""
        for channel_id, belief in self._vouching.beliefs.items():
            released, belief.released = belief.released, []
            for packet in released:
                self._perform(self._mergers[channel_id].on_packet(packet, self.clock.now_ns))

    def _merge_series(self, series: PacketSeries, now_ns: int) -> None:
        self._perform(self._mergers[series.channel_id].on_series(series, now_ns))
        if self._snapshots:
            self._take_snapshots()

    def _perform(self, effects: list[MergeEffect]) -> None:
        self._is_deadline_old = True
        for effect in effects:
            if isinstance(effect, Deliver):
                if effect.packet.flags & RETRANSMISSION_BIT:
                    self.losses.on_delivered(effect.packet)
                self._deliver((effect.packet,))
            elif isinstance(effect, DeliverSeries):
                self.losses.on_series_delivered(effect.series)
                self._deliver_series(effect.series)
            elif isinstance(effect, RequestReplay):
                self._request_replay(effect)
            elif isinstance(effect, Filled):
                self.losses.on_filled(effect.packet)
                self.ready.append(FilledItem(self._batch(effect.packet, time.time_ns())))
            else:
                self.losses.on_event(effect)
                if isinstance(effect, Ended):
                    self._ended.add(effect.channel_id)
                elif isinstance(effect, SessionChanged):
                    self._ended.discard(effect.channel_id)
                elif isinstance(effect, Takeover):
                    effect = replace(effect, at_ns=self._received_ns)
                self.ready.append(effect)

    def _deliver(self, packets: tuple[OutputPacket, ...]) -> None:
        """Deliver packets of one channel, or add them to its snapshot."""
        unix_ns = time.time_ns()
        if self._snapshots and (snapshot := self._snapshots.get(packets[0].channel_id)) is not None:
            for packet in packets:
                snapshot.add(self._batch(packet, unix_ns))
        else:
            self.ready += [self._batch(packet, unix_ns) for packet in packets]

    def _deliver_series(self, series: PacketSeries) -> None:
        if self._filters or self._field_filter is not None or self._snapshots or self._begun:
            self._deliver(series.packets)
            return
        times, decoder = (time.time_ns(), self._received_ns), self.decoder
        batches = [BatchOfSeries(series, place, *times, decoder) for place in range(len(series))]
        if self._is_for_cursor:
            lineage = self._mergers[series.channel_id].present.lineage
            for batch in batches:
                batch.lineage = lineage
        self.ready += batches

    def _is_live(self, channel_id: int) -> bool:
        of_sessions = self._mergers[channel_id]
        merger = of_sessions.present
        is_begun = merger.lineage.epoch and merger.next_input_seq is not None
        return bool(is_begun) and not merger.has_missing_messages and not of_sessions.is_in_former_session

    def _take_snapshots(self) -> None:
        """Deliver the snapshots of channels that have caught up with their live streams."""
        for channel_id in list(self._snapshots):
            if self._is_live(channel_id):
                merger = self._mergers[channel_id].present
                batches = self._snapshots.pop(channel_id).take()
                self.ready += batches
                message_count = sum(batch.message_count for batch in batches)
                self.ready.append(SnapshotTaken(channel_id, message_count, merger.next_message_seq or 0))

    def _batch(self, packet: OutputPacket, unix_ns: int) -> Batch:
        places = None
        if self._filters and (chosen := self._filters.get(packet.channel_id)) is not None:
            packet, places = chosen.select(packet)
        batch = Batch(packet, unix_ns, self._received_ns, self.decoder, places)
        if self._field_filter is not None:
            batch = self._field_filter.select(batch)
        return self._for_cursor(batch) if self._is_for_cursor else batch

    def _for_cursor(self, batch: Batch) -> Batch:
        """The batch without messages that were handled before, with the history that its numbers belong to."""
        channel_id = batch.channel_id
        if (begun := self._begun.pop(channel_id, None)) is not None:
            stream, source_seq, message_count = begun
            first = batch.packet.runs[0]
            if (first.source_stream_id, first.first_source_seq) == (stream, source_seq):
                batch = batch.without_first(message_count)
        batch.lineage = self._mergers[channel_id].present.lineage
        return batch


def _decoder_of(grant: Grant) -> Decoder:
    return Decoder(grant.message_model, f"message model of {grant.feed_name}")
