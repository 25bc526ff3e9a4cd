"""Mutants of `feedcore/replica` that no test can kill, and why; part of `tests.mutation.equivalent.EQUIVALENT`."""

from __future__ import annotations

_REPLICA = "feedcore/replica"
_DECIDING, _FOLLOWING, _ROLE = (
    f"{_REPLICA}/roles/deciding.py",
    f"{_REPLICA}/roles/following.py",
    f"{_REPLICA}/roles/role.py",
)
_INTAKE, _TRACKER = f"{_REPLICA}/input/decision_intake.py", f"{_REPLICA}/input/source_tracker.py"
_SESSIONS, _CHANNEL, _ENGINE = f"{_REPLICA}/sessions.py", f"{_REPLICA}/channel.py", f"{_REPLICA}/engine.py"
_NO_HEIR = "a gap begins at source_seq 1 or later, so neither an end of 0 nor one of 1 is after it"
_SHORTCUT = "a shortcut for the hot path; the slow path has the same result"
_SETS_WHAT_IS_SET = "it does not matter which of two equal numbers is kept"
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
    (
        _FOLLOWING,
        "Following.compare",
        "- pairs = zip(ours.digests, theirs.digests, strict=True)\n"
        "+ pairs = zip(ours.digests, theirs.digests, strict=False)",
    ): "the lengths were compared above",
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
    (_ENGINE, "AdapterEngine.on_output_packet", "- if sessions.coming:\n+ if True:"): _SHORTCUT,
    (
        _SESSIONS,
        "Sessions.__init__",
        "- self._final_heartbeats_at_ns = self._final_heartbeats_often_until_ns = 0\n+ pass",
    ): "read only after final heartbeats, which set it",
}
