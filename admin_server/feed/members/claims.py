"""What the server believes of the numbers that one adapter names, where it has no record of them itself. Pure.

An adapter may be faulty or in wrong hands. A number beyond the records either proves that the records are old, a
restored backup, or that the adapter lies. There are two grounds to believe it: this server's own signature, made before
the records were lost, and the same word from more than half of the adapters of the feed. Any other claim is refused,
counted and kept for administrators, and the rest of that report does not count either.

Invariant: no number from a single adapter moves anything, unless it is the feed's only one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from tandemfeed.feedcore.wire.position import SEQ_MAX
from tandemfeed.v1 import common_pb2

KINDS_MAX = 8  # kinds of claims that are remembered of an adapter
# A number that is further ahead of the records than this is an adapter's error, and not from before a restored backup.
EPOCH_JUMP_MAX = 1 << 20
SESSION_GRACE_NS = 15_000_000_000  # an adapter of a feed has two graces of 5 s to change the session


class Grounds(Enum):
    """Why a number is believed."""

    NONE = "none"
    MOST = "more than half of the adapters report it"
    PROOF = "this server signed it"


@dataclass(slots=True)
class Doubt:
    """What an adapter said that is not believed.

    Attributes:
        what: for people, with the number that was known and the one that was named.
        count: reports refused for it.
    """

    what: str
    count: int = 0
    last_unix_ns: int = 0


class SessionVerdict(Enum):
    """What the server thinks of the session that an adapter is in."""

    KNOWN = "the feed is in it, or was"
    BELIEVED = "the feed is in it now"
    AWAITED = "others may follow"
    REFUSED = "no one followed"


class Claims:
    """The claims of one feed's adapters. One thread at a time."""

    def __init__(self) -> None:
        self._later_since_ns: dict[int, int] = {}  # adapter_id -> since when it reports a later session than the feed's
        self._claimed: dict[str, dict[int, int]] = {}  # kind -> adapter_id -> the number
        self._doubts: dict[int, dict[str, Doubt]] = {}  # adapter_id -> kind -> doubt

    def judge(
        self, kind: str, adapter_id: int, claimed: int, known: int, members: Collection[int], *, is_proved: bool = False
    ) -> tuple[Grounds, int]:
        """Judge a number that is greater than the known one.

        Args:
            members: the adapters that count: those of the feed that are not failed.
            is_proved: a signature of this server comes with it.

        Returns:
            Why, and up to which number, it is believed.
        """
        if is_proved:
            return Grounds.PROOF, claimed
        said = self._claimed.setdefault(kind, {})
        said[adapter_id] = claimed
        numbers = sorted((said.get(each, 0) for each in members), reverse=True)
        agreed = numbers[len(numbers) // 2] if numbers else 0
        return (Grounds.MOST, agreed) if agreed > known else (Grounds.NONE, known)

    def judge_session(
        self, adapter_id: int, session: int, known: int, source: int, attending: Collection[int], now_ns: int
    ) -> SessionVerdict:
        """Judge the session that an adapter reports.

        Args:
            known: the feed's session so far.
            source: the latest session that a source reported; 0: none, as when adapters hear a venue's own lines.
            attending: the adapters that count: those that attend and are not failed.
        """
        if session <= known:
            self._later_since_ns.pop(adapter_id, None)
            return SessionVerdict.KNOWN
        grounds, agreed = self.judge("session", adapter_id, session, known, attending)
        is_agreed = grounds is not Grounds.NONE and session <= agreed
        if session <= source or (is_agreed and (not source or len(attending) > 1)):
            return SessionVerdict.BELIEVED
        # Its source may report the session later than an adapter does, and the other adapters may follow later.
        is_alone = now_ns - self._later_since_ns.setdefault(adapter_id, now_ns) > SESSION_GRACE_NS
        return SessionVerdict.REFUSED if is_alone else SessionVerdict.AWAITED

    def withdraw(self, kind: str, adapter_id: int) -> None:
        """The adapter does not name such a number any more."""
        self._claimed.get(kind, {}).pop(adapter_id, None)

    def refuse(self, kind: str, adapter_id: int, what: str, now_unix_ns: int) -> bool:
        """Note a refused report. True if it is the first of its kind."""
        doubts = self._doubts.setdefault(adapter_id, {})
        if kind not in doubts and len(doubts) >= KINDS_MAX:
            return False
        doubt = doubts.setdefault(kind, Doubt(what))
        doubt.what, doubt.count, doubt.last_unix_ns = what, doubt.count + 1, now_unix_ns
        return doubt.count == 1

    def doubts(self, adapter_id: int) -> list[Doubt]:
        """What the adapter said that was not believed, since its last admission."""
        return list(self._doubts.get(adapter_id, {}).values())

    def forget(self, adapter_id: int) -> None:
        """An administrator has readmitted the adapter."""
        self._doubts.pop(adapter_id, None)
        self._later_since_ns.pop(adapter_id, None)
        for said in self._claimed.values():
            said.pop(adapter_id, None)


def impossible_in(state: common_pb2.FeedAdapterState, channel_ids: Iterable[int]) -> str | None:
    """What no adapter can truthfully report, whatever the server knows; None: nothing."""
    score = state.health.score
    if not (math.isfinite(score) and 0.0 <= score <= 1.0):
        return f"a health score of {score}; it is between 0 and 1"
    known, seen = set(channel_ids), set[int]()
    for channel in state.channels:
        if channel.channel_id not in known:
            return f"channel {channel.channel_id}, which the feed does not have"
        if channel.channel_id in seen:
            return f"channel {channel.channel_id} twice"
        seen.add(channel.channel_id)
        position = channel.position
        furthest = max(position.next_input_seq, position.next_message_seq, *position.next_source_seqs.values(), 0)
        if furthest > SEQ_MAX:
            return f"a sequence number of {furthest} on channel {channel.channel_id}; the greatest is {SEQ_MAX}"
    return None
