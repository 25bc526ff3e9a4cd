"""What a client believes of an adapter's numbers, between opening a packet and merging it (protocol clause 7.8).

A seal shows that a packet is from a member of the feed, a signature from which. Neither shows that the member is right.
So an adapter's word counts for what the admin server has granted it, and no further:

- An epoch counts once the server vouches for it (`feedcore.vouched_epochs`). It is the word of its owner, the adapter
  that it was granted to: its history, how far its decisions have come, where they end, and which losses it declares.
- Another adapter's copy of what the owner decided counts as far as the owner has come. It may come first, so it also
  counts if it continues what is believed, by a limited number of messages.
- While the owner is silent, the others' word counts as far as more than half of those that are heard agree. While it is
  heard as the active, no adapter needs to forward anything provisionally.
- A later session counts if the server describes the feed by it, or, after a moment of listening, more than
  half of the adapters that were heard within a second are in it.
- A `source_seq` is never greater than the `input_seq` of the same message, because both begin at 1 in a session and a
  channel may read several source streams.

What may yet count is held for a while. Anything else is dropped like a lost packet, or is no more than a sign
of life. So an adapter that names false numbers costs its own copies, which other adapters send too.

Invariant: without the owner's word, or that of more than half of the adapters heard, no packet that passes moves the
end of what is known by more than `AHEAD_MAX` source messages beyond the owner's.
"""

from __future__ import annotations

import heapq
from collections import deque

from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.merge.config import IDLE_HEARTBEAT_NS
from tandemfeed.feedcore.vouched_epochs import VouchedEpochs
from tandemfeed.feedcore.wire.lineage import Lineage, decode_lineage
from tandemfeed.feedcore.wire.output_packet import (
    ANNOUNCEMENT_BIT,
    END_OF_STREAM_BIT,
    FROM_ACTIVE_BIT,
    HEARTBEAT_BIT,
    PROVISIONAL_BIT,
    RETRANSMISSION_BIT,
    OutputPacket,
)
from tandemfeed.feedcore.wire.packet_series import PacketSeries
from tandemfeed.feedcore.wire.refusal import PacketRefused, Refusal

MS = 1_000_000
SILENT_NS = 100 * MS  # without a packet or heartbeat of an adapter: it does not count as heard
# An adapter that was heard so recently is still one of the feed when a later session is judged, which is not urgent: a
# receiver that has just begun to listen, or lost everything for a moment, may hear the one that lies first.
MEMBER_NS = 1_000 * MS
AHEAD_MAX = 16_384  # source messages that a copy may precede its original by: 160 ms at 100,000 a second
HELD_MAX = 4_096  # packets that wait for an epoch or a session to be vouched for; later ones replace the oldest
EARLY_MAX = 1_024  # copies that wait for their originals, so that a lost original need not be requested
HELD_NS = 2_000 * MS  # then it can be requested again
NEVER_NS = -(1 << 62)
VIEWS_MAX = 8  # epochs and sessions of which something is remembered
NOT_NUMBERED_BITS = HEARTBEAT_BIT | PROVISIONAL_BIT | ANNOUNCEMENT_BIT
assert SILENT_NS > 3 * IDLE_HEARTBEAT_NS  # survives three lost heartbeats


class _View:
    """What adapters say of one epoch in one session.

    Attributes:
        owner: the adapter that the epoch was granted to; 0: not known here, so every adapter's word counts.
        since_ns: when it was first heard of.
        active_at_ns: when the owner was last heard as the active.
        owner_end: one past the last `input_seq` that the owner has shown.
        reach: one past the last `input_seq` that is believed, by the owner or in copies that continue it.
        lineage: as the owner gave it.
        said_end: the owner has said that the stream ended.
        ended_by: the other adapters that have said so.
        ends, histories: of the other adapters, by adapter_id.
    """

    __slots__ = (
        "active_at_ns",
        "ended_by",
        "ends",
        "histories",
        "lineage",
        "owner",
        "owner_end",
        "reach",
        "said_end",
        "since_ns",
    )

    def __init__(self, owner: int, now_ns: int) -> None:
        self.owner, self.since_ns, self.active_at_ns = owner, now_ns, NEVER_NS
        self.owner_end = self.reach = 0
        self.lineage: Lineage | None = None
        self.said_end = False
        self.ended_by: set[int] = set()
        self.ends: dict[int, int] = {}
        self.histories: dict[int, Lineage] = {}


class Belief:
    """For one channel of one subscription.

    Args:
        vouched: the epochs that the admin server vouches for; the owner of this object keeps it.
        session: by which the admin server describes the feed.

    Attributes:
        released: packets that were held and count now, in order of arrival. The caller takes them after each call.
    """

    def __init__(self, counters: CounterSet, vouched: VouchedEpochs, session: int) -> None:
        self._counters, self._vouched = counters, vouched
        self._session = session  # the greatest that is vouched for
        self._views: dict[tuple[int, int], _View] = {}  # by (session, epoch)
        self._place = (0, 0)  # of the view that the last packet was judged by
        self._view = _View(0, 0)
        self._settled = (0, 0)  # the newest view whose history is known, which bounds what counts of older ones
        self._heard_at_ns: dict[int, int] = {}
        self._since_ns = NEVER_NS  # when the first packet came
        self._claimed: dict[int, set[int]] = {}  # by later session, the adapters that are in it
        self._held: deque[tuple[int, OutputPacket]] = deque()  # with the time of arrival
        self._early: list[tuple[int, int, OutputPacket]] = []  # of this view; a heap, by first input_seq and arrival
        self._early_count = 0
        self.released: list[OutputPacket] = []

    def on_vouched(self, now_ns: int) -> None:
        """The server vouches for another epoch."""
        self._judge_held(now_ns)

    def on_described(self, session: int, now_ns: int) -> None:
        """The admin server describes the feed by this session."""
        if session > self._session:
            self._session = session
            self._judge_held(now_ns)

    def believed(self, packet: OutputPacket, now_ns: int) -> OutputPacket | None:
        """What of a packet counts now: all of it, that its sender lives, or nothing (None)."""
        adapter_id, flags = packet.adapter_id, packet.flags
        if not flags & RETRANSMISSION_BIT:
            self._heard_at_ns[adapter_id] = now_ns
        place = packet.session, packet.epoch
        view = self._view if place == self._place else self._view_of(place, packet, now_ns)
        if view is None:
            return None if flags & RETRANSMISSION_BIT or packet.session > self._session else _sign_of_life(packet)
        owner = view.owner
        if flags & FROM_ACTIVE_BIT:
            if adapter_id != owner and owner:
                self._counters.refuse(Refusal.UNVOUCHED)
                return None
            view.active_at_ns = now_ns
        if flags & NOT_NUMBERED_BITS:
            return self._not_numbered(view, packet, now_ns)
        runs = packet.runs
        for run in runs:
            if run.first_source_seq > run.first_input_seq:
                self._counters.refuse(Refusal.UNVOUCHED)
                return None
        last = runs[-1]
        end = last.first_input_seq + last.source_count
        if adapter_id == owner:
            if end > view.owner_end:
                view.owner_end = end
                if end > view.reach:
                    view.reach = end
                    if self._early:
                        self._release_early(view)
            return packet
        if end <= view.owner_end or self._is_copy(view, packet, end, now_ns):
            return packet
        if flags & RETRANSMISSION_BIT:
            self._counters.refuse(Refusal.UNVOUCHED)
            return None
        self._keep_early(view, packet)
        return _sign_of_life(packet)

    def asks_who_lives(self, packet: OutputPacket, now_ns: int) -> bool:
        """Whether more depends on this packet because its epoch's owner seems silent. Then pass in every sign of life
        first that has arrived and was not looked at."""
        owner = self._view.owner
        return packet.adapter_id != owner and now_ns - self._heard_at_ns.get(owner, NEVER_NS) >= SILENT_NS

    def believes_series(self, series: PacketSeries, now_ns: int) -> bool:
        """Whether replayed packets that continue each other count as they are; otherwise judge each."""
        place = series.session, series.epoch
        if place < self._settled:
            return True
        view = self._views.get(place)
        return view is not None and series.end_input_seq <= max(view.reach, self._limit(view, now_ns))

    def may_extend(self, packet: OutputPacket, now_ns: int) -> bool:
        """Whether the numbers of a signed packet count: whether what is within them may precede its signature."""
        place = packet.session, packet.epoch
        view = self._views.get(place)
        if view is None:
            is_vouched = packet.session <= self._session and packet.epoch <= self._vouched.newest
            return is_vouched and self._vouched.owner_of(packet.epoch) in (0, packet.adapter_id)
        if view.owner in (0, packet.adapter_id):
            return True
        return packet.end_input_seq <= max(view.reach, self._limit(view, now_ns))

    # ---- inside ----

    def _view_of(self, place: tuple[int, int], packet: OutputPacket, now_ns: int) -> _View | None:
        """The view to judge a packet by; None: it does not count, or not yet."""
        session, epoch = place
        if self._since_ns == NEVER_NS:
            self._since_ns = now_ns
        if epoch > self._vouched.newest or (session > self._session and not self._is_vouched(packet, now_ns)):
            self._hold(packet, now_ns)
            return None
        owner = self._vouched.owner_of(epoch)
        view = self._views.get(place)
        if view is None or view.owner != owner:
            view = self._views[place] = _View(owner, now_ns)
            if len(self._views) > VIEWS_MAX:
                del self._views[min(self._views)]
        if owner:  # without one, the next packet looks again
            if place > self._place:
                self._early = []
            self._place, self._view = place, view
        return view

    def _is_copy(self, view: _View, packet: OutputPacket, end: int, now_ns: int) -> bool:
        """Whether messages of another adapter than the owner count, although the owner has not come so far."""
        place = packet.session, packet.epoch
        if not view.owner or place < self._settled:
            return True
        if not packet.flags & RETRANSMISSION_BIT:
            view.ends[packet.adapter_id] = max(end, view.ends.get(packet.adapter_id, 0))
            is_continuing = packet.first_input_seq <= view.reach and end <= view.owner_end + AHEAD_MAX
            if is_continuing and not any(run.is_source_gap for run in packet.runs):
                if end > view.reach:
                    view.reach = end
                    self._release_early(view)
                return True
        return end <= max(view.reach, self._limit(view, now_ns))

    def _not_numbered(self, view: _View, packet: OutputPacket, now_ns: int) -> OutputPacket | None:
        """Judge a heartbeat, an announcement, or what is sent provisionally."""
        flags = packet.flags
        if not flags & HEARTBEAT_BIT:
            if flags & PROVISIONAL_BIT and packet.adapter_id == view.owner:
                view.active_at_ns = NEVER_NS  # it says itself that it is not the active any more
            is_needless = flags & PROVISIONAL_BIT and now_ns - view.active_at_ns < SILENT_NS
            return _sign_of_life(packet) if is_needless else packet
        try:
            lineage = decode_lineage(packet.payload)
        except PacketRefused as refused:
            self._counters.refuse(refused.reason)
            return None
        if lineage.epoch != packet.epoch and not (flags & PROVISIONAL_BIT and not lineage.epoch):
            self._counters.refuse(Refusal.MALFORMED)
            return None
        if view.owner in (0, packet.adapter_id):
            self._note_word(view, packet, lineage)
        elif not self._is_word(view, packet, lineage, now_ns):
            return _sign_of_life(packet)
        elif flags & END_OF_STREAM_BIT and not self._has_ended(view, packet.adapter_id, now_ns):
            packet = packet._replace(flags=flags & ~END_OF_STREAM_BIT)
        if self._early:
            self._release_early(view)
        self._settled = max(self._settled, (packet.session, packet.epoch))
        return packet

    @staticmethod
    def _note_word(view: _View, packet: OutputPacket, lineage: Lineage) -> None:
        """Note the heartbeat of the epoch's owner."""
        if packet.flags & PROVISIONAL_BIT:
            return
        view.lineage = lineage
        view.owner_end = max(view.owner_end, packet.first_input_seq)
        view.reach = max(view.reach, packet.first_input_seq)
        view.said_end = view.said_end or bool(packet.flags & END_OF_STREAM_BIT)

    def _is_word(self, view: _View, packet: OutputPacket, lineage: Lineage, now_ns: int) -> bool:
        """Whether another adapter's heartbeat says what the owner said, or what most of those heard say instead."""
        adapter_id, end = packet.adapter_id, packet.first_input_seq
        view.histories[adapter_id] = lineage
        if view.lineage is not None:
            is_same = _are_one_history(view.lineage, lineage)
        elif self._is_owner_heard(view, now_ns):
            is_same = False  # its own heartbeat follows soon
        else:
            heard = self._heard(now_ns)
            agreeing = [each for each in heard if each in view.histories]
            count = sum(_are_one_history(view.histories[each], lineage) for each in agreeing)
            is_same = 2 * count > len(heard)
        if not is_same or packet.flags & PROVISIONAL_BIT:
            return is_same
        view.ends[adapter_id] = max(end, view.ends.get(adapter_id, 0))
        if end > max(view.reach, self._limit(view, now_ns)):
            return False
        view.reach = max(view.reach, end)
        return True

    def _has_ended(self, view: _View, adapter_id: int, now_ns: int) -> bool:
        """Whether the stream has ended, as another adapter than the owner says."""
        view.ended_by.add(adapter_id)
        if view.said_end or self._is_owner_heard(view, now_ns):
            return view.said_end
        heard = self._heard(now_ns)
        return 2 * sum(each in view.ended_by for each in heard) > len(heard)

    def _keep_early(self, view: _View, packet: OutputPacket) -> None:
        """Keep a copy that does not continue what is believed: what is missing before it may only be late."""
        if view is not self._view or len(self._early) >= EARLY_MAX:
            self._counters.refuse(Refusal.UNVOUCHED)
            return
        self._early_count += 1
        heapq.heappush(self._early, (packet.first_input_seq, self._early_count, packet))

    def _release_early(self, view: _View) -> None:
        """Release the copies whose originals are known to exist now."""
        early = self._early
        while early and view is self._view and early[0][0] <= view.reach:
            packet = heapq.heappop(early)[2]
            has_gap = any(run.is_source_gap for run in packet.runs)
            if packet.end_input_seq > view.owner_end + (0 if has_gap else AHEAD_MAX):
                self._counters.refuse(Refusal.UNVOUCHED)
                continue
            view.reach = max(view.reach, packet.end_input_seq)
            self.released.append(packet)

    def _limit(self, view: _View, now_ns: int) -> int:
        """How far the epoch has come by the owner's word, or by that of more than half of the adapters heard."""
        heard = set(self._heard(now_ns))
        if self._is_owner_heard(view, now_ns):
            heard.add(view.owner)
        ends = [view.owner_end if each == view.owner else view.ends.get(each, 0) for each in heard]
        ends.sort(reverse=True)
        return max(view.owner_end, ends[len(ends) // 2]) if ends else view.owner_end

    def _heard(self, now_ns: int) -> list[int]:
        return [each for each, at_ns in self._heard_at_ns.items() if now_ns - at_ns < SILENT_NS]

    def _is_owner_heard(self, view: _View, now_ns: int) -> bool:
        """True while the owner is heard, or its epoch is so new here that it may be heard soon."""
        heard_at_ns = max(self._heard_at_ns.get(view.owner, 0), view.since_ns)
        return now_ns - heard_at_ns < SILENT_NS

    def _is_vouched(self, packet: OutputPacket, now_ns: int) -> bool:
        """Whether the later session of this packet counts, now that its sender is in it too."""
        session = packet.session
        claiming = self._claimed.setdefault(session, set())
        claiming.add(packet.adapter_id)
        if len(self._claimed) > VIEWS_MAX:
            del self._claimed[max(each for each in self._claimed if each != session)]
        heard = [each for each, at_ns in self._heard_at_ns.items() if now_ns - at_ns < MEMBER_NS]
        if now_ns - self._since_ns < SILENT_NS or 2 * sum(each in claiming for each in heard) <= len(heard):
            return False
        self._claimed = {each: claiming for each, claiming in self._claimed.items() if each > session}
        self.on_described(session, now_ns)
        return True

    def _hold(self, packet: OutputPacket, now_ns: int) -> None:
        held = self._held
        held.append((now_ns, packet))
        while len(held) > HELD_MAX or now_ns - held[0][0] > HELD_NS:
            held.popleft()
            self._counters.refuse(Refusal.UNVOUCHED)

    def _judge_held(self, now_ns: int) -> None:
        """Judge what was held again."""
        held, self._held = self._held, deque()
        for at_ns, packet in held:
            if packet.epoch > self._vouched.newest or packet.session > self._session:
                self._held.append((at_ns, packet))
            elif (found := self.believed(packet, now_ns)) is not None:
                self.released.append(found)


def _are_one_history(one: Lineage, other: Lineage) -> bool:
    """True if the epochs that both name are the same, and begin at the same places."""
    depth = min(len(one.entries), len(other.entries))
    return depth > 0 and one.entries[-depth:] == other.entries[-depth:]


def _sign_of_life(packet: OutputPacket) -> OutputPacket:
    """A packet that says only that its sender lives (protocol 7.4)."""
    flags = ANNOUNCEMENT_BIT | (packet.flags & RETRANSMISSION_BIT)
    return packet._replace(flags=flags, payload=b"", runs=(), message_count=0)
