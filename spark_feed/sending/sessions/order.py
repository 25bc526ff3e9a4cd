"""Which session a gateway sends: the first one after a start, and the next one when a session is complete. Pure.

The shell looks for source journals; this says which one begins now, or why none does. A session begins when the one
before it has been sent to its end and an adapter has begun that one: adapters hold at most two later sessions, so a
gateway far ahead of all of them would make them miss one. Never: returns to an earlier session, begins a session
twice, or chooses between two journals of one session, whose numbers would mean different messages.

Invariant: the sessions that begin only grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

END_PATIENCE_NS = 60_000_000_000  # a source job that is killed restarts within half a minute
FEED_PATIENCE_NS = 10_000_000_000  # adapters report their session every second


class FoundJournal(NamedTuple):
    """A source journal of the feed.

    Attributes:
        is_begun: this feed's gateway has sent from it.
    """

    session: int
    journal: Path
    is_begun: bool = False


class BeginSession(NamedTuple):
    """Send this journal from now on.

    Attributes:
        former: the journal of the session before, in which adapters may still have gaps; None: there is none.
    """

    session: int
    journal: Path
    former: Path | None


class AwaitFirst(NamedTuple):
    """No session has begun, and there is no journal of this one or, unless it was asked for, a later one."""

    session: int
    is_asked: bool

    def reason(self) -> str:
        """For people."""
        which = f"session {self.session}" if self.is_asked else f"session {self.session} or a later one"
        return f"nothing is sent, because there is no journal of {which}"


class AwaitJournal(NamedTuple):
    """There is no journal of a later session yet: a gateway waits so every night."""

    def reason(self) -> str:
        """For people."""
        return "there is no journal of a later session yet"


class AwaitEnd(NamedTuple):
    """The present session has no end, and a journal of a later one is there."""

    session: int
    later: int

    def reason(self) -> str:
        """For people."""
        return (
            f"session {self.later} waits, because the journal of session {self.session} has no end: run its source job "
            f"with --until-idle, or `tandemfeed end-session`, or restart the gateway with --session {self.later}"
        )


class AwaitFeed(NamedTuple):
    """No adapter has begun the present session, which has been sent to its end."""

    session: int
    later: int

    def reason(self) -> str:
        """For people."""
        return (
            f"session {self.later} waits, because no adapter has begun session {self.session}: start an adapter, "
            "or the admin server"
        )


class AwaitChoice(NamedTuple):
    """Several journals contain the session to begin."""

    session: int
    journals: tuple[Path, ...]

    def reason(self) -> str:
        """For people."""
        names = ", ".join(journal.name for journal in self.journals)
        return f"session {self.session} waits, because {names} contain it: move all but one of them to another folder"


Wait: TypeAlias = AwaitFirst | AwaitJournal | AwaitEnd | AwaitFeed | AwaitChoice
# Before people must know. AwaitJournal is not here: nothing is wrong while the next journal does not exist.
PATIENCE_NS = {AwaitFirst: 0, AwaitEnd: END_PATIENCE_NS, AwaitFeed: FEED_PATIENCE_NS, AwaitChoice: 0}


class SessionOrder:
    """Decides for one gateway.

    Args:
        asked: the session to begin with, unless this gateway or the feed is in a later one already; 0: the earliest
            that is not over.

    Attributes:
        session: the present one; 0: none has begun.
        waiting_reason: why the next session does not begin, if people should do something about it; else empty.
    """

    def __init__(self, asked: int = 0) -> None:
        self._asked = asked
        self.session = 0
        self.waiting_reason = ""
        self._seen: tuple[BeginSession | Wait, int] | None = None  # the last outcome, and the position then
        self._seen_since_ns = 0
        self._too_late: set[Path] | None = None  # journals of sessions that are over; None: not looked yet

    def on_look(
        self, found: Sequence[FoundJournal], *, feed_session: int, is_complete: bool, position: int = 0, now_ns: int
    ) -> BeginSession | Wait:
        """What to do now. After `BeginSession`, call `begun` if the session could begin.

        Args:
            found: all journals of the feed.
            feed_session: the latest session that an adapter has begun, or the feed's first one.
            is_complete: the present session has been sent to its end.
            position: in its journal, after what was sent; while it grows, nothing waits for long.
        """
        outcome = self._next(found, feed_session, is_complete) if self.session else self._first(found, feed_session)
        if (outcome, position) != self._seen:
            self._seen, self._seen_since_ns = (outcome, position), now_ns
        self.waiting_reason = ""
        if isinstance(outcome, BeginSession | AwaitJournal):
            return outcome
        if now_ns - self._seen_since_ns >= PATIENCE_NS[type(outcome)]:
            self.waiting_reason = outcome.reason()
        return outcome

    def begun(self, session: int) -> None:
        """The session has begun."""
        assert session > self.session, f"session {session} after {self.session}"
        self.session = session

    def new_too_late(self, found: Iterable[FoundJournal], present: Path) -> list[FoundJournal]:
        """The journals that appeared since the last call and will not be sent, because their session is over.

        Args:
            present: the journal of the present session.
        """
        over = {each.journal: each for each in found if each.session <= self.session and each.journal != present}
        known = self._too_late
        self._too_late = {present, *over, *(known or ())}
        return [] if known is None else [each for journal, each in over.items() if journal not in known]

    def _first(self, found: Sequence[FoundJournal], feed_session: int) -> BeginSession | Wait:
        reached = max((each.session for each in found if each.is_begun), default=0)
        least = max(reached, feed_session, self._asked)
        first = min((each.session for each in found if each.session >= least), default=0)
        is_asked = least == self._asked
        if not first or (is_asked and first != self._asked):
            return AwaitFirst(least, is_asked)
        return _begin(found, first)

    def _next(self, found: Sequence[FoundJournal], feed_session: int, is_complete: bool) -> BeginSession | Wait:
        later = min((each.session for each in found if each.session > self.session), default=0)
        if not later:
            return AwaitJournal()
        if not is_complete:
            return AwaitEnd(self.session, later)
        if feed_session < self.session:
            return AwaitFeed(self.session, later)
        return _begin(found, later)


def _begin(found: Sequence[FoundJournal], session: int) -> BeginSession | AwaitChoice:
    """Begin a session of which there is a journal."""
    journals = sorted(each.journal for each in found if each.session == session)
    if len(journals) > 1:
        return AwaitChoice(session, tuple(journals))
    earlier = [each for each in found if each.session < session]
    former = max(earlier, key=lambda each: (each.is_begun, each.session), default=None)
    return BeginSession(session, journals[0], None if former is None else former.journal)
