"""Mutants that no test can kill, because the change has no observable effect: (file, function, change) -> why."""

from __future__ import annotations

from tests.mutation.equivalent_in_replica import EQUIVALENT_IN_REPLICA

_CANDIDATES, _CORE, _TERMS = (
    "admin_server/lease/candidates.py",
    "admin_server/lease/lease_core.py",
    "admin_server/lease/lease_terms.py",
)
_MERGE = "feedcore/merge"
_HOLD, _ORDER = "feedcore/hold_queue.py", f"{_MERGE}/source_order.py"
_COMPARISON, _MERGER = f"{_MERGE}/copies/comparison.py", f"{_MERGE}/merger.py"
_HOT_DELIVERY = (
    "len(packet.runs) == {} and packet.first_input_seq == next_input_seq and (order.next_source_seqs.get(stream) == "
    "first_source) and (not run.is_source_gap)"
)
_SET_AS_IT_OPENS = "read only while a gap is open, and set when it opens"
_SAME_PLACE = "both histories agree up to there, so equal input_seq imply equal message_seq"
_SET_BY_EVERY_GRANT = "read only while the lease is held, and every grant and restoration sets it"
_CONTACT, _VIEW, _PEERS = "feedcore/lease/admin_contact.py", "feedcore/lease/lease_view.py", "feedcore/lease/peers.py"
_SET_BY_AN_EXPIRED_TERM = "read only for a holder whose term passed, and set with it"
_NEXT_IS_LARGER = "the next number is always larger than the newest epoch; the other bound is only a safeguard"
_SET_BEFORE_READ = "read only after a longer term was noted, which sets it"
_SET_BY_HEARING = "read only after contact with an admin server, which sets it"
_SET_BY_AN_OUTAGE = "read only while the adapter settles after an outage, whose end sets it"
_SET_BY_THE_GRANT = "read only while an epoch is held, and its grant sets it"
_SET_BY_THE_TERM = "read only by a holder, and its grant sets it"
_MEMBERSHIP = "spark_feed/contributions/pair/membership.py"
_SETS_WHAT_IS_SET = "it does not matter which of two equal numbers is kept"
_RESTORED = (
    "return OutputPacket({}, {}, channel_id, adapter_id, {}, {}, first_input_seq, first_message, count, runs, {}, {}, "
    "payload)"
)
_NOT_COMPARED = "flags, session, epoch and times are not compared"
_HOT_PATH = "a shortcut for the hot path; the slow path has the same result"
_HAS_NUMBER = "the number is known there; the other operand only satisfies the type checker"
_RANGES = "feedcore/range_set.py"
_LATER_THAN_ANY_TIME = "the initial value of a minimum may be any number larger than every time"

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        _CANDIDATES,
        "Candidates.best",
        "- return min(order)[-1] if order else None\n+ return min(order)[--1] if order else None",
    ): "each entry is a pair, so indices -1 and 1 are the same",
    (
        _CORE,
        "FeedLease.__init__",
        "- self.next_epoch_number = 1\n+ self.next_epoch_number = 0",
    ): "a new epoch is larger than the newest one, so the first is 1 in both cases",
    (_CORE, "FeedLease.__init__", "- self._until_ns = 0\n+ pass"): _SET_BY_EVERY_GRANT,
    (_CORE, "FeedLease.__init__", "- self._until_ns = 0\n+ self._until_ns = 1"): _SET_BY_EVERY_GRANT,
    (_CORE, "FeedLease.__init__", "- self._late_until_ns = 0\n+ pass"): _SET_BY_AN_EXPIRED_TERM,
    (_CORE, "FeedLease.__init__", "- self._late_until_ns = 0\n+ self._late_until_ns = 1"): _SET_BY_AN_EXPIRED_TERM,
    (_TERMS, "Terms.__init__", "- self._longest_until_ns = 0\n+ pass"): _SET_BEFORE_READ,
    (_TERMS, "Terms.__init__", "- self._longest_until_ns = 0\n+ self._longest_until_ns = 1"): _SET_BEFORE_READ,
    (
        _CORE,
        "FeedLease._new_epoch",
        "- epoch = max(self.epoch + 1, self.next_epoch_number)\n+ epoch = max(self.epoch - 1, self.next_epoch_number)",
    ): _NEXT_IS_LARGER,
    (
        _CORE,
        "FeedLease._new_epoch",
        "- epoch = max(self.epoch + 1, self.next_epoch_number)\n+ epoch = max(self.epoch + 0, self.next_epoch_number)",
    ): _NEXT_IS_LARGER,
    (
        _CORE,
        "FeedLease.refusal_to_fail",
        "- others = [each for each in in_sync if each != adapter_id]\n+ others = [each for each in in_sync]",
    ): "an adapter that is the only one in sync was refused above",
    (
        _CORE,
        "FeedLease._may_renew",
        "- return self.holder <= 0 and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)\n"
        "+ return True and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)",
    ): "if there is a holder, it is the last holder of the newest epoch",
    (
        _CORE,
        "FeedLease._may_renew",
        "- return self.holder <= 0 and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)\n"
        "+ return self.holder <= 1 and adapter_id == self._last_holder and self.candidates.may_be_active(adapter_id)",
    ): "if there is a holder, it is the last holder of the newest epoch",
    (
        f"{_MERGE}/history/place.py",
        "place_of_message",
        "- if packet.first_message_seq < message_seq < packet.end_message_seq:\n"
        "+ if packet.first_message_seq <= message_seq < packet.end_message_seq:",
    ): "a message_seq at either end was handled above",
    (
        f"{_MERGE}/history/place.py",
        "place_of_message",
        "- if packet.first_message_seq < message_seq < packet.end_message_seq:\n"
        "+ if packet.first_message_seq < message_seq <= packet.end_message_seq:",
    ): "a message_seq at either end was handled above",
    (
        f"{_MERGE}/provisional/forwarders.py",
        "DecidedEnd.within",
        "- if fork is None or fork.first_input_seq >= self.place.input_seq:\n"
        "+ if fork is None or fork.first_input_seq > self.place.input_seq:",
    ): _SAME_PLACE,
    (
        f"{_MERGE}/adapter_streams.py",
        "AdapterStreams.on_packet",
        "- if end_input_seq > self._ends.get(adapter_id, 0) and (not flags & UNNUMBERED_BITS):\n"
        "+ if end_input_seq >= self._ends.get(adapter_id, 0) and (not flags & UNNUMBERED_BITS):",
    ): "assigns an equal value",
    **{
        (f"{_MERGE}/gaps/gap_repair.py", "GapRepair.__init__", f"- {before}\n+ {after}"): _SET_AS_IT_OPENS
        for before, wrong in (
            ("self._first_missing = 0", "self._first_missing = 1"),
            ("self._request_at_ns = 0", "self._request_at_ns = 1"),
            ("self._pause_ns = 0", "self._pause_ns = 1"),
            ("self._is_requested = False", "self._is_requested = True"),
        )
        for after in ("pass", wrong)
    },
    (
        f"{_MERGE}/gaps/gap_repair.py",
        "GapRepair.__init__",
        "- self.has_asked = False\n+ self.has_asked = True",
    ): _SET_AS_IT_OPENS,
    (
        f"{_MERGE}/gaps/gap_repair.py",
        "ChannelRepair.forget_from",
        "- if self.known_end_input_seq > place.input_seq:\n+ if self.known_end_input_seq >= place.input_seq:",
    ): _SAME_PLACE,
    (
        f"{_MERGE}/gaps/gap_repair.py",
        "ChannelRepair.__init__",
        "- self.requested_end = 0\n+ self.requested_end = 1",
    ): "no input_seq is less than 1",
    **{
        (
            _HOLD,
            "HoldQueue.add",
            "- if first < self._firsts[place] if prefer_newest else first > self._firsts[place]:\n"
            f"+ if first {older} self._firsts[place] if prefer_newest else first {newer} self._firsts[place]:",
        ): "an item that begins there was handled above"
        for older, newer in (("<=", ">"), ("<", ">="))
    },
    (
        _HOLD,
        "HoldQueue.missing",
        "- if not count_max or len(ranges) == range_count_max:\n+ if False or len(ranges) == range_count_max:",
    ): "a shortcut: empty ranges are not listed",
    **{
        (_ORDER, "SourceOrder.take", f"- {before}\n+ {after}"): "a shortcut: such a packet is a single piece"
        for before, after in (
            (
                "expected = ends.get(stream) or self.next_source_seqs.get(stream, run.first_source_seq)",
                "expected = ends.get(stream) and self.next_source_seqs.get(stream, run.first_source_seq)",
            ),
            (
                "expected = ends.get(stream) or self.next_source_seqs.get(stream, run.first_source_seq)",
                "expected = ends.get(stream) or False",
            ),
            ("if run.first_source_seq != expected or run.is_source_gap:", "if True:"),
        )
    },
    (
        _ORDER,
        "SourceOrder._take_pieces",
        "- if run.first_source_seq > next_source:\n+ if run.first_source_seq >= next_source:",
    ): "skipping zero messages changes nothing",
    (
        _ORDER,
        "SourceOrder._take_pieces",
        "- lost.append((first + to_input, end + to_input, SourceGap(self._channel_id, stream, first, end - 1)))\n"
        "+ lost.append((first + to_input, end - to_input, SourceGap(self._channel_id, stream, first, end - 1)))",
    ): "only the first number of a source gap is read",
    (
        _ORDER,
        "SourceOrder._take_pieces",
        "- for first, end, event in sorted(pieces, key=itemgetter(0)):\n"
        "+ for first, end, event in sorted(pieces, key=itemgetter(1)):",
    ): "pieces do not overlap, so both keys give the same order",
    (
        _COMPARISON,
        "CopyComparison.__init__",
        "- self._longest = 0\n+ self._longest = 1",
    ): "every packet has at least one source message",
    (_COMPARISON, "are_equal", "- return False\n+ pass"): "a result of None counts as False",
    (
        _COMPARISON,
        "CopyComparison.__init__",
        "- self._series_end = 0\n+ self._series_end = 1",
    ): "no source message precedes input_seq 1",
    **{
        (_COMPARISON, "CopyComparison.compare", f"- if packet.first_input_seq < self._series_end:\n+ if {after}:"): (
            "a shortcut: no series is found that has any of the packet's source messages"
        )
        for after in ("True", "packet.first_input_seq <= self._series_end")
    },
    **{
        (
            _COMPARISON,
            "CopyComparison._note",
            f"- if len(packets) + self._series_count > self._remembered_count:\n+ if {after}:",
        ): "a shortcut: nothing is forgotten until there are too many"
        for after in ("True", "len(packets) + self._series_count >= self._remembered_count")
    },
    (
        _COMPARISON,
        "CopyComparison._forget",
        "- if self._series and (not packets or self._series[0].first_input_seq < firsts[self._begin]):\n"
        "+ if self._series and (not packets or self._series[0].first_input_seq <= firsts[self._begin]):",
    ): "a source message is delivered once, so no series begins where a packet does",
    (
        _COMPARISON,
        "CopyComparison.remember",
        "- if self._every != 1:\n+ if True:",
    ): "a shortcut: if every packet is remembered, none is skipped",
    **{
        (
            _COMPARISON,
            "CopyComparison._note",
            f"- if not packets or first > firsts[-1]:\n+ if {after}:",
        ): "a shortcut: insort also finds the place at the end"
        for after in ("False", "not packets or False")
    },
    (
        _COMPARISON,
        "CopyComparison._note",
        "- if count > self._longest:\n+ if count >= self._longest:",
    ): _SETS_WHAT_IS_SET,
    (
        _COMPARISON,
        "CopyComparison._compare_common",
        "- while index < len(self._firsts) and (first := self._firsts[index]) < end_input_seq:\n"
        "+ while index < len(self._firsts) and (first := self._firsts[index]) <= end_input_seq:",
    ): "a packet that begins at the end does not overlap the copy",
    (
        _COMPARISON,
        "_restored",
        "- runs = decode_runs(payload, run_count, count, 0, first_input_seq, first_message, count)\n"
        "+ runs = decode_runs(payload, run_count, count, 1, first_input_seq, first_message, count)",
    ): _NOT_COMPARED,
    **{
        (
            _COMPARISON,
            "_restored",
            f"- {_RESTORED.format(0, 0, 0, 0, 0, 0)}\n+ {_RESTORED.format(*(int(at == wrong) for at in range(6)))}",
        ): _NOT_COMPARED
        for wrong in range(6)
    },
    (
        _MERGER,
        "StreamMerger._take",
        "- if end > gap.known_end_input_seq:\n+ if end >= gap.known_end_input_seq:",
    ): _SAME_PLACE,
    (
        _MERGER,
        "StreamMerger._on_old",
        "- if self._declared.ranges and self._declared.fill(packet, end, effects):\n"
        "+ if True and self._declared.fill(packet, end, effects):",
    ): "a shortcut: without ranges there is nothing to fill",
    (
        _MERGER,
        "StreamMerger.has_missing_messages",
        "- return 0 < (self.next_message_seq or 0) < self._gap.known_end_message_seq\n"
        "+ return 1 < (self.next_message_seq or 0) < self._gap.known_end_message_seq",
    ): "a subscription from message 1 knows its place from the start",
    (
        _MERGER,
        "StreamMerger.on_packet",
        "- elif packet.epoch == self._gate.passing_epoch:\n+ elif False:",
    ): _HOT_PATH,
    (
        _MERGER,
        "StreamMerger.next_deadline_ns",
        "- if at_ns is not None and (deadline_ns is None or at_ns < deadline_ns):\n"
        "+ if at_ns is not None and (deadline_ns is None or at_ns <= deadline_ns):",
    ): _SETS_WHAT_IS_SET,
    **{
        (_MERGER, function, f"- if {condition}:\n+ if {after}:"): _HOT_PATH
        for function, condition, after in (
            (
                "StreamMerger._watch",
                "next_input_seq is not None and (not gap.has_asked) and self._streams.are_all_past(next_input_seq)",
                "next_input_seq is not None and True and self._streams.are_all_past(next_input_seq)",
            ),
            ("StreamMerger._take", "self._provisional.gaps", "True"),
            ("StreamMerger._after_taking", "self._reported_end is not None", "True"),
            ("StreamMerger._place", "self._held.items", "True"),
            ("StreamMerger._deliver", _HOT_DELIVERY.format(1), "False"),
            ("StreamMerger._deliver", _HOT_DELIVERY.format(1), _HOT_DELIVERY.format(0)),
        )
    },
    **{
        (_MERGER, function, f"- {line.format(0)}\n+ {line.format(1)}"): _HAS_NUMBER
        for function, line in (
            ("StreamMerger._after_taking", "effects.append(CaughtUp(self.channel_id, self.next_message_seq or {}))"),
            (
                "StreamMerger._report_progress",
                "next_seq, known_end = (self.next_message_seq or {}, self._gap.known_end_message_seq)",
            ),
        )
    },
    (
        _MERGER,
        "StreamMerger._confirm",
        "- self._confirmation.passed(self.next_input_seq or 0)\n+ self._confirmation.passed(self.next_input_seq or 1)",
    ): "nothing ends at or before input_seq 1",
    **{
        (_MERGER, "StreamMerger._request", f"- {before}\n+ {after}"): reason
        for before, after, reason in (
            (
                "self._gap.requested_end = ranges[-1][1] if ranges else 0",
                "self._gap.requested_end = ranges[-1][1] if True else 0",
                "an open gap has a missing range",
            ),
            (
                "self._gap.requested_end = ranges[-1][1] if ranges else 0",
                "self._gap.requested_end = ranges[-1][1] if ranges else 1",
                "an open gap has a missing range",
            ),
            (
                "elif with_numbered and self.next_message_seq is not None:",
                "elif with_numbered and True:",
                "a live subscription that has not begun misses no message",
            ),
            (
                "holders = self._confirmation.adapters_with(*ranges[0]) if self._is_confirming and ranges else ()",
                "holders = self._confirmation.adapters_with(*ranges[0]) if True and ranges else ()",
                "a shortcut: without confirm=2 no copy waits",
            ),
        )
    },
    (
        _MERGER,
        "StreamMerger._declare",
        "- if end.input_seq <= first.input_seq if is_begun else end.message_seq <= first.message_seq:\n"
        "+ if end.input_seq < first.input_seq if is_begun else end.message_seq <= first.message_seq:",
    ): "a gap without source messages is declared by no event, and ends where it begins",
    (
        f"{_MERGE}/history/history_gate.py",
        "HistoryGate.__init__",
        "- self._awaited_epoch = 0\n+ self._awaited_epoch = 1",
    ): "an epoch is awaited only after another is known, so it is at least 2",
    (
        f"{_MERGE}/sessions.py",
        "SessionMerger.on_packet",
        "- if packet.session < self.session:\n+ if packet.session <= self.session:",
    ): "a packet of the current session was handled above",
    (
        f"{_MERGE}/copies/confirmation.py",
        "Confirmation.keep",
        "- self._longest = max(self._longest, packet.end_input_seq - packet.first_input_seq)\n"
        "+ self._longest = max(self._longest, packet.end_input_seq + packet.first_input_seq)",
    ): "only searches more copies than necessary",
    (
        f"{_MERGE}/copies/confirmation.py",
        "Confirmation.__init__",
        "- self._longest = 0\n+ self._longest = 1",
    ): "every packet has at least one source message",
    (
        f"{_MERGE}/copies/confirmation.py",
        "Confirmation.on_packet",
        "- if known.first_input_seq == piece.first_input_seq and is_same_packet(known, piece):\n"
        "+ if True and is_same_packet(known, piece):",
    ): "a payload names its source messages, and one history has them at one input_seq",
    (
        "admin_server/feed/members/adapter_starts.py",
        "AdapterStarts.note_counters",
        "- if counter > known and channel_id in self._channel_ids:\n"
        "+ if counter >= known and channel_id in self._channel_ids:",
    ): _SETS_WHAT_IS_SET,
    (
        "admin_server/feed/contributions/contribution_terms.py",
        "ContributionTerms.decide",
        "- if claim.copy and claim.copy == record.holder_copy and (not claim.term):\n"
        "+ if True and claim.copy == record.holder_copy and (not claim.term):",
    ): "a record without a holder's copy was handled above, so an equal copy is not empty",
    **{
        (_MEMBERSHIP, "Membership.__init__", f"- self._is_recorded = False\n+ {after}"): _SET_BY_THE_TERM
        for after in ("pass", "self._is_recorded = True")
    },
    (
        _MEMBERSHIP,
        "Membership.on_positions",
        "- if self._joining and self._joining not in positions:\n+ if True and self._joining not in positions:",
    ): "without a follower that joins, sets what is set",
    (_CONTACT, "AdminContact.__init__", "- self._epoch_in_contact = 0\n+ pass"): _SET_BY_HEARING,
    (_CONTACT, "AdminContact.__init__", "- self._epoch_in_contact = 0\n+ self._epoch_in_contact = 1"): _SET_BY_HEARING,
    (_CONTACT, "AdminContact.__init__", "- self._epoch_before_outage = 0\n+ pass"): _SET_BY_AN_OUTAGE,
    (
        _CONTACT,
        "AdminContact.__init__",
        "- self._epoch_before_outage = 0\n+ self._epoch_before_outage = 1",
    ): _SET_BY_AN_OUTAGE,
    (_VIEW, "LeaseView.__init__", "- self._valid_until_ns = 0\n+ pass"): _SET_BY_THE_GRANT,
    (_VIEW, "LeaseView.__init__", "- self._valid_until_ns = 0\n+ self._valid_until_ns = 1"): _SET_BY_THE_GRANT,
    (_PEERS, "Peers.consent_until_ns", "- until_ns = 1 << 62\n+ until_ns = 2 << 62"): _LATER_THAN_ANY_TIME,
    (_PEERS, "Peers.consent_until_ns", "- until_ns = 1 << 62\n+ until_ns = 1 << 63"): _LATER_THAN_ANY_TIME,
    (_PEERS, "Peers.consent_until_ns", "- until_ns = 1 << 62\n+ until_ns = 1 << 61"): _LATER_THAN_ANY_TIME,
    **{
        (_MERGER, f"StreamMerger.{function}", f"- {line.format('LOOKING_FOR_START')}\n+ {line.format('False')}"): (
            "LOOKING_FOR_START is 0, which equals False"
        )
        for function, line in (
            ("on_replay_ended", "if (self.next_input_seq or {}) != self._requested_from:"),
            ("_watch", "gap.watch(next_input_seq or {}, now_ns)"),
            ("_request", "self._requested_from = self.next_input_seq or {}"),
        )
    },
    (
        "feedcore/deadlines.py",
        "earliest",
        "- if at_ns is not None and (first_ns is None or at_ns < first_ns):\n"
        "+ if at_ns is not None and (first_ns is None or at_ns <= first_ns):",
    ): _SETS_WHAT_IS_SET,
    **{
        (_RANGES, "RangeSet.add", f"- elif first >= firsts[-1]:\n+ elif {after}:"): _HOT_PATH
        for after in ("False", "first > firsts[-1]")
    },
    **{
        (_RANGES, "RangeSet.remove", f"- if firsts and first <= firsts[0] < end < ends[0]:\n+ if {after}:"): _HOT_PATH
        for after in (
            "False",
            "firsts and first < firsts[0] < end < ends[0]",
            "firsts and first <= firsts[0] <= end < ends[0]",
        )
    },
    (
        _RANGES,
        "RangeSet.truncate_before",
        "- if self._firsts and self._firsts[0] < number:\n+ if self._firsts and self._firsts[0] <= number:",
    ): "removes an empty range",
    (
        _RANGES,
        "RangeSet.truncate_from",
        "- if self._ends and self._ends[-1] > number:\n+ if self._ends and self._ends[-1] >= number:",
    ): "removes an empty range",
    (
        "feedcore/wire/packet_series.py",
        "PacketSeries.__init__",
        "- shared: tuple[int, int, int, int, int] = headers[0][_SHARED].item()\n"
        "+ shared: tuple[int, int, int, int, int] = headers[1][_SHARED].item()",
    ): "all packets of a series have them in common",
    (
        "feedcore/wire/lineage.py",
        "Lineage.end_of",
        "- if start.epoch > epoch:\n+ if start.epoch >= epoch:",
    ): "an equal epoch was handled above",
    **{
        (
            "feedcore/wire/lineage.py",
            "Lineage.fork_from",
            "- oldest = max(min(ours, default=0), min(theirs, default=0))\n"
            f"+ oldest = max(min(ours, default={ours}), min(theirs, default={theirs}))",
        ): "no epoch is below 1"
        for ours, theirs in ((0, 1), (1, 0))
    },
    **{
        (
            _MERGER,
            "StreamMerger._rewind_to",
            "- place = Place(self.next_input_seq or 0, self.next_message_seq or 0)\n"
            f"+ place = Place(self.next_input_seq or {input_seq}, self.next_message_seq or {message_seq})",
        ): "a merge without a place neither notes nor returns to one"
        for input_seq, message_seq in ((0, 1), (1, 0))
    },
    (
        _MERGER,
        "StreamMerger._rewind_to",
        "- if place.input_seq > fork.input_seq and (not self._declared.ranges.overlaps(fork.input_seq, "
        "place.input_seq)):\n"
        "+ if place.input_seq >= fork.input_seq and (not self._declared.ranges.overlaps(fork.input_seq, "
        "place.input_seq)):",
    ): "it continues from there, so a later former place is part of as much",
    **{
        ("spark_feed/sending/sessions/order.py", "SessionOrder.__init__", f"- self._seen_since_ns = 0\n+ {now}"): (
            "the first look sets it"
        )
        for now in ("pass", "self._seen_since_ns = 1")
    },
    (
        "spark_feed/sending/sessions/order.py",
        "SessionOrder._first",
        "- reached = max((each.session for each in found if each.is_begun), default=0)\n"
        "+ reached = max((each.session for each in found if each.is_begun), default=1)",
    ): "a feed's session is never below 1",
    **EQUIVALENT_IN_REPLICA,
}
