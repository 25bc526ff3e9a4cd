"""Mutants of `feedcore/replica` that no test can kill, and why; part of `tests.mutation.equivalent.EQUIVALENT`."""

from __future__ import annotations

_REPLICA = "feedcore/replica"
_DECIDING, _FOLLOWING, _ROLE = (
    f"{_REPLICA}/roles/deciding.py",
    f"{_REPLICA}/roles/following.py",
    f"{_REPLICA}/roles/role.py",
)
_INTAKE, _TRACKER = f"{_REPLICA}/input/decision_intake.py", f"{_REPLICA}/input/source_tracker.py"
_APPLYING, _PRODUCTION = f"{_REPLICA}/input/applying.py", f"{_REPLICA}/output/production.py"
_SESSIONS, _CHANNEL, _ENGINE = f"{_REPLICA}/sessions.py", f"{_REPLICA}/channel.py", f"{_REPLICA}/engine.py"
_NO_HEIR = "a gap begins at source_seq 1 or later, so neither an end of 0 nor one of 1 is after it"
_SHORTCUT = "a shortcut for the hot path; the slow path has the same result"
_SETS_WHAT_IS_SET = "it does not matter which of two equal numbers is kept"
_TIME_IN_THE_PAST = "any time in the past has the same effect"
_SET_BY_THE_OFFER = "read only with an offer, which sets it"
_SET_BY_THE_FIRST_PACKET = "read only while packets are held, and every packet sets it"
_SET_BY_THE_REPAIR = "read only during a repair, whose beginning sets it"
_SET_BY_HOLDING = "read only while packets wait, and the first of them sets it"
_SET_WHEN_A_SESSION_COMES = "read only while a later session is known, and set with it"
_VOID_OFFER = "an offer of an epoch that is not newer than the newest one known is never taken"
_ONLY_FIRST = "only the first range is read"
_SOME = "the reason lists some of the buckets as examples"

EQUIVALENT_IN_REPLICA: dict[tuple[str, str, str], str] = {
    **{
        (
            _DECIDING,
            "Deciding._declare_lost",
            "- end, heir = max(((ends.get(stream, 0), each) for each, ends in channel.available_at_peers.items()), "
            "default=(0, 0))\n"
            "+ end, heir = max(((ends.get(stream, 0), each) for each, ends in channel.available_at_peers.items()), "
            f"default={after})",
        ): _NO_HEIR
        for after in ("(1, 0)", "(0, 1)")
    },
    (
        _FOLLOWING,
        "Following.apply",
        "- if channel.is_single_source and (not repair.buckets):\n+ if True and (not repair.buckets):",
    ): "with several source streams, every message needs a decision; the check only saves time",
    **{
        (
            _FOLLOWING,
            "Following._give_up_repair",
            "- return self.leave(f'buckets {self._repair.buckets[:8]} differ and could not be set', now_ns)\n"
            f"+ return self.leave(f'buckets {{self._repair.buckets[:{count}]}} differ and could not be set', now_ns)",
        ): _SOME
        for count in (7, 9)
    },
    (
        _ROLE,
        "BackupRole.on_output_packet",
        "- if packet.epoch < intake.epoch and packet.end_input_seq > intake.lineage.end_of(packet.epoch):\n"
        "+ if packet.epoch <= intake.epoch and packet.end_input_seq > intake.lineage.end_of(packet.epoch):",
    ): "the newest epoch has no end",
    (_ROLE, "BackupRole.apply", "- raise NotImplementedError\n+ pass"): "every role overrides it",
    (_ROLE, "BackupRole.due_promotion", "- return None\n+ pass"): _SHORTCUT,
    (_ROLE, "BackupRole.due_promotion", "- if not hand_over.is_awaited:\n+ if False:"): _SHORTCUT,
    (
        f"{_REPLICA}/active_view.py",
        "FlapDamper.__init__",
        "- self._silences = 0\n+ self._silences = 1",
    ): "the first silence sets it, and until then one silence has the same effect as none",
    (
        f"{_REPLICA}/input/applying.py",
        "_apply_one",
        "- if tracker.next_source_seq is None or run.end_source_seq > tracker.next_source_seq:\n"
        "+ if False or run.end_source_seq > tracker.next_source_seq:",
    ): "a replica that applies decisions has a position, and so have its trackers; the check satisfies mypy",
    (
        f"{_REPLICA}/input/decision_log.py",
        "DecisionLog.__init__",
        "- self._count = 0\n+ self._count = 1",
    ): "a row of zeros is before every position, and is overwritten first",
    (
        _CHANNEL,
        "Channel.take_source",
        "- self._arrivals += 1\n+ self._arrivals += 2",
    ): "only the order of arrivals matters",
    (_INTAKE, "DecisionIntake.on_runs", "- if self._early.items:\n+ if True:"): _SHORTCUT,
    (
        _INTAKE,
        "DecisionIntake.on_next_input_seq",
        "- if next_input_seq > self._known_end:\n+ if next_input_seq >= self._known_end:",
    ): _SETS_WHAT_IS_SET,
    (
        _INTAKE,
        "DecisionIntake._take",
        "- if not self._is_anchored or run.end_input_seq > self._next_input_seq:\n+ if True:",
    ): "known decisions would be held and immediately removed",
    (
        _TRACKER,
        "SourceTracker.on_packet",
        "- if expected == packet.first_source_seq and (not self._held.items):\n+ if False:",
    ): _SHORTCUT,
    (
        _TRACKER,
        "SourceTracker.on_packet",
        "- if expected is not None and end <= expected:\n+ if expected is not None and end < expected:",
    ): "a copy would be held and immediately removed",
    (
        _TRACKER,
        "SourceTracker.lost",
        "- for first, end in self._held.missing(self.next_source_seq, self.known_end, 1, self.known_end):\n"
        "+ for first, end in self._held.missing(self.next_source_seq, self.known_end, 0, self.known_end):",
    ): _ONLY_FIRST,
    (
        _TRACKER,
        "SourceTracker.lost",
        "- for first, end in self._held.missing(self.next_source_seq, self.known_end, 1, self.known_end):\n"
        "+ for first, end in self._held.missing(self.next_source_seq, self.known_end, 2, self.known_end):",
    ): _ONLY_FIRST,
    (_ENGINE, "AdapterEngine.on_source_datagram", "- if sessions.coming:\n+ if True:"): _SHORTCUT,
    (
        _ENGINE,
        "AdapterEngine.on_source_datagram",
        "- if packet.message_count and (not converter.check(datagram)):\n"
        "+ if True and (not converter.check(datagram)):",
    ): "a shortcut: a heartbeat has no frames",
    (_ENGINE, "AdapterEngine.on_output_packet", "- if sessions.coming:\n+ if True:"): _SHORTCUT,
    (
        _SESSIONS,
        "Sessions.__init__",
        "- self._final_heartbeats_at_ns = self._final_heartbeats_often_until_ns = 0\n+ pass",
    ): "read only after final heartbeats, which set it",
    **{
        (
            f"{_REPLICA}/active_view.py",
            "FlapDamper._hold_ns",
            "- return 0 if excess <= 0 else min(HOLD_NS_FIRST << min(excess - 1, 8), HOLD_NS_MAX)\n"
            f"+ return 0 if excess <= 0 else min(HOLD_NS_FIRST << min(excess - 1, {bound}), HOLD_NS_MAX)",
        ): "the maximum is reached after four doublings; the bound only keeps the number small"
        for bound in (7, 9)
    },
    (
        _CHANNEL,
        "Channel.__init__",
        "- self.ask_lease_store_at_ns = 0\n+ self.ask_lease_store_at_ns = 1",
    ): _TIME_IN_THE_PAST,
    (
        _CHANNEL,
        "Channel.__init__",
        "- self._arrivals = 0\n+ self._arrivals = 1",
    ): "only the order of arrivals matters",
    (
        _CHANNEL,
        "Channel.take_output_packet",
        "- return\n+ pass",
    ): "a heartbeat has no runs",
    **{
        (
            _CHANNEL,
            "Channel.take_output_packet",
            f"- if packet.epoch > intake.epoch and packet.payload:\n+ if {after}:",
        ): "a shortcut: a history that is not newer is ignored"
        for after in ("True and packet.payload", "packet.epoch >= intake.epoch and packet.payload")
    },
    (
        _ENGINE,
        "AdapterEngine.__init__",
        "- self._has_accepted = False\n+ pass",
    ): _SET_BY_THE_OFFER,
    (
        _ENGINE,
        "AdapterEngine.__init__",
        "- self._has_accepted = False\n+ self._has_accepted = True",
    ): _SET_BY_THE_OFFER,
    (
        _ENGINE,
        "AdapterEngine.__init__",
        "- self._ask_to_fail_at_ns = 0\n+ self._ask_to_fail_at_ns = 1",
    ): _TIME_IN_THE_PAST,
    (
        _ENGINE,
        "AdapterEngine.on_source_datagram",
        "- return effects + produced if effects else produced\n+ return effects + produced if True else produced",
    ): _SHORTCUT,
    (
        f"{_REPLICA}/replica.py",
        "ChannelReplica.on_source_packet",
        "- return self._end(self._role.on_slices(packet.source_stream_id, slices, now_ns), now_ns) if slices else []\n"
        "+ return self._end(self._role.on_slices(packet.source_stream_id, slices, now_ns), now_ns) if True else []",
    ): _SHORTCUT,
    (
        f"{_REPLICA}/replica.py",
        "ChannelReplica._next_role",
        "- assert_never(succession)\n+ pass",
    ): "unreachable, as the type checker proves",
    (_SESSIONS, "Sessions.__init__", "- self._look_at_ns = 0\n+ pass"): _SET_WHEN_A_SESSION_COMES,
    (
        _SESSIONS,
        "Sessions.__init__",
        "- self._look_at_ns = 0\n+ self._look_at_ns = 1",
    ): _SET_WHEN_A_SESSION_COMES,
    (
        _SESSIONS,
        "Sessions.__init__",
        "- self._final_heartbeats_at_ns = self._final_heartbeats_often_until_ns = 0\n"
        "+ self._final_heartbeats_at_ns = self._final_heartbeats_often_until_ns = 1",
    ): "read only after final heartbeats, which set it",
    (
        _SESSIONS,
        "Sessions.__init__",
        "- if config.session_state is SessionState.RESET:\n+ if True:",
    ): "the initial state is not read if sessions carry it over",
    (
        _SESSIONS,
        "Sessions.on_timer",
        "- if not self._final_heartbeats or now_ns < self._final_heartbeats_at_ns:\n"
        "+ if False or now_ns < self._final_heartbeats_at_ns:",
    ): "a shortcut: without final heartbeats, none is sent",
    (
        _APPLYING,
        "apply_decisions",
        "- if ready and line.provisional is not None and (not _leads_past(channel, line.provisional)):\n"
        "+ if True and line.provisional is not None and (not _leads_past(channel, line.provisional)):",
    ): "a shortcut: without decisions there is nothing to apply",
    (
        _APPLYING,
        "apply_decisions",
        "- if repair is not None and repair.buckets and (not repair.may_apply()):\n"
        "+ if repair is not None and True and (not repair.may_apply()):",
    ): _SHORTCUT,
    **{
        (_APPLYING, function, f"- {line.format(0)}\n+ {line.format(1)}"): "no packet ends at or before input_seq 1"
        for function, line in (
            ("apply_decisions", "is_quiet = run.end_input_seq <= channel.transmitted_ends.get(run.epoch, {})"),
            ("anticipate", "if packet.end_input_seq > channel.transmitted_ends.get(packet.epoch, {}):"),
        )
    },
    **{
        (
            _APPLYING,
            "forward",
            f"- {before}\n+ {after}",
        ): "a shortcut: during a pause, each message is returned to the backlog"
        for before, after in (
            ("if is_throttled and (not throttle.may_send(now_ns)):", "if False:"),
            ("return", "pass"),
        )
    },
    (
        _APPLYING,
        "_leads_past",
        "- if not provisional.is_past(intake.position().next_source_seqs):\n+ if False:",
    ): "a shortcut: then some message that was sent ahead is still undecided after the last decision",
    (
        _APPLYING,
        "_leads_past",
        "- return False\n+ pass",
    ): "the first one: a shortcut; then some message that was sent ahead is still undecided after the last decision",
    (
        _APPLYING,
        "_leads_past",
        "- return False\n+ return True",
    ): "the last one: unreachable, because the decisions reach past all of it and those without their messages return",
    (
        _APPLYING,
        "_leads_past",
        "- known_end = channel.trackers[run.source_stream_id].next_source_seq or 0\n"
        "+ known_end = channel.trackers[run.source_stream_id].next_source_seq or 1",
    ): "no run ends at or before source_seq 1",
    (
        _INTAKE,
        "DecisionIntake.__init__",
        "- self._epoch = 0\n+ self._epoch = 1",
    ): "read only with a place, which sets it",
    (
        _INTAKE,
        "DecisionIntake.on_lineage",
        "- self._unjudged.clear()\n+ pass",
    ): "they would be judged again, with the same result",
    (
        _INTAKE,
        "DecisionIntake.on_runs",
        "- if run.first_input_seq == self._next_input_seq and run.epoch == self.lineage.epoch and self._is_anchored:\n"
        "+ if False:",
    ): _SHORTCUT,
    (
        _INTAKE,
        "DecisionIntake._take",
        "- if not self._is_anchored or run.end_input_seq > self._next_input_seq:\n"
        "+ if not self._is_anchored or run.end_input_seq >= self._next_input_seq:",
    ): "known decisions would be held and immediately removed",
    (
        _TRACKER,
        "SourceTracker.__init__",
        "- self.known_end = 1\n+ self.known_end = 0",
    ): "no source_seq is less than 1",
    (_TRACKER, "SourceTracker.__init__", "- self._arrivals = 0\n+ pass"): _SET_BY_THE_FIRST_PACKET,
    (_TRACKER, "SourceTracker.__init__", "- self._arrivals = 0\n+ self._arrivals = 1"): _SET_BY_THE_FIRST_PACKET,
    (_TRACKER, "SourceTracker.on_packet", "- if self._gap_since_ns is not None:\n+ if True:"): _SHORTCUT,
    (
        _TRACKER,
        "SourceTracker.on_packet",
        "- if expected is not None and end <= expected:\n+ if False:",
    ): "a copy would be held and immediately removed",
    (
        _TRACKER,
        "SourceTracker.note_end",
        "- if end_source_seq > self.known_end:\n+ if end_source_seq >= self.known_end:",
    ): _SETS_WHAT_IS_SET,
    (
        _TRACKER,
        "SourceTracker.lost",
        "- if self._gap_since_ns is None or self.next_source_seq is None:\n+ if self._gap_since_ns is None or False:",
    ): "only a stream with a place has a gap; the other operand satisfies mypy",
    (
        f"{_REPLICA}/output/bucket_repair.py",
        "BucketRepair.__init__",
        "- self._tries_left = self._due_at_ns = 0\n+ pass",
    ): (_SET_BY_THE_REPAIR),
    (
        f"{_REPLICA}/output/bucket_repair.py",
        "BucketRepair.__init__",
        "- self._tries_left = self._due_at_ns = 0\n+ self._tries_left = self._due_at_ns = 1",
    ): _SET_BY_THE_REPAIR,
    (
        _PRODUCTION,
        "ProductionLine.install",
        "- before = self._converter.snapshot() if snapshot.digests else b''\n"
        "+ before = self._converter.snapshot() if True else b''",
    ): "a shortcut: a snapshot without digests is not refused for its state",
    (
        _PRODUCTION,
        "ProductionLine.follow",
        "- if sent_before:\n+ if True:",
    ): "a shortcut: packets shifted by nothing are the same",
    (
        _PRODUCTION,
        "ProductionLine.commit_provisional",
        "- if provisional.runs and provisional.runs[0].first_input_seq > self.next_input_seq:\n"
        "+ if True and provisional.runs[0].first_input_seq > self.next_input_seq:",
    ): "every slice makes a run, so what was sent ahead has at least one",
    (
        _PRODUCTION,
        "ProductionLine._enter",
        "- if run.epoch != self.lineage.epoch:\n+ if True:",
    ): "a shortcut: the history up to the present epoch is the present history",
    (
        f"{_REPLICA}/output/publish_gate.py",
        "PublishGate.__init__",
        "- self._announce_at_ns = 0\n+ pass",
    ): _SET_BY_HOLDING,
    (
        f"{_REPLICA}/output/publish_gate.py",
        "PublishGate.__init__",
        "- self._announce_at_ns = 0\n+ self._announce_at_ns = 1",
    ): _SET_BY_HOLDING,
    (
        _SESSIONS,
        "Sessions._on_session",
        "- is_left = any((session < each.session and each.adapter_heard_at_ns is not None for each in "
        "self.coming.values()))\n"
        "+ is_left = any((session <= each.session and each.adapter_heard_at_ns is not None for each in "
        "self.coming.values()))",
    ): "a session that is known to come was returned above",
    (
        _SESSIONS,
        "Sessions._on_session",
        "- if session < self.current.session or is_left or len(self.coming) >= COMING_MAX:\n"
        "+ if session <= self.current.session or is_left or len(self.coming) >= COMING_MAX:",
    ): "called only for sessions other than the current one",
    (
        _SESSIONS,
        "Sessions._may_leave_for",
        "- if not replica.channel.is_at_end:\n+ if True:",
    ): "a channel at its end has nothing to give up",
    (_ENGINE, "AdapterEngine.on_lease_granted", "- self._offer = None\n+ pass"): _VOID_OFFER,
    (_ENGINE, "AdapterEngine._take_offer", "- self._offer = None\n+ pass"): _VOID_OFFER,
    (
        _ENGINE,
        "AdapterEngine._change_session_if_due",
        "- is_deciding = self.lease.is_held and self._promote_at_ns is None\n"
        "+ is_deciding = True and self._promote_at_ns is None",
    ): "without a lease its epoch is 0",
    (
        f"{_REPLICA}/replica.py",
        "ChannelReplica.is_holding",
        "- return isinstance(self._role, Deciding) and self._role.is_holding\n+ return True and self._role.is_holding",
    ): "asked only of a replica that decides; the other operand satisfies mypy",
    **{
        (
            _CHANNEL,
            "Channel.take_output_packet",
            f"- if packet.epoch > intake.epoch and packet.payload:\n+ if {after}:",
        ): "a shortcut: an empty history, or one that is not newer, changes nothing"
        for after in (
            "True",
            "packet.epoch > intake.epoch or packet.payload",
            "packet.epoch > intake.epoch and True",
        )
    },
    (
        _DECIDING,
        "Deciding.on_output_packet",
        "- if packet.epoch == lineage.epoch or lineage.holds(packet.epoch, packet.end_input_seq):\n"
        "+ if False or lineage.holds(packet.epoch, packet.end_input_seq):",
    ): _SHORTCUT,
    (
        _DECIDING,
        "Deciding._declare_lost",
        "- end, heir = max(((ends.get(stream, 0), each) for each, ends in channel.available_at_peers.items()), "
        "default=(0, 0))\n"
        "+ end, heir = max(((ends.get(stream, 1), each) for each, ends in channel.available_at_peers.items()), "
        "default=(0, 0))",
    ): _NO_HEIR,
    (
        _FOLLOWING,
        "PositionedBackup.__init__",
        "- self._front_since_ns = now_ns\n+ pass",
    ): "read only while a decision waits, and set when the first one does",
    **{
        (
            _FOLLOWING,
            "Following._judge",
            f"- {before}\n+ {after}",
        ): _SHORTCUT
        for before, after in (
            (
                "if channel.state is ReplicaState.SYNCHRONIZED and channel.active.heard_at_ns == now_ns:",
                "if False:",
            ),
            ("return None", "pass"),
        )
    },
    (
        _FOLLOWING,
        "Following._judge",
        "- if channel.state is ReplicaState.DETACHED and self._may_proceed(now_ns):\n"
        "+ if True and self._may_proceed(now_ns):",
    ): "an active that is silent for long enough to proceed is silent for long enough to become DETACHED, above",
    (
        f"{_REPLICA}/roles/joining.py",
        "Joining.apply",
        "- if self._is_resumed:\n+ if True:",
    ): "without a place, no decision is ready",
}
