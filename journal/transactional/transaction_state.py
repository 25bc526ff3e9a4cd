"""The states of a transaction and the one table of legal moves. PURE: no clock, no file, no thread.

Whatever waits for the log writer is a state of its own, so that nothing is added to a transaction that is on its way to
the disk. Invariant: from PREPARED on only a decision that is on the disk ends a transaction; a crash never does.
"""

from __future__ import annotations

from enum import Enum

from journal.transactional.errors import IllegalTransactionMove


class TransactionState(Enum):
    """One sentence each; the value is what listings show."""

    ACTIVE = "active"  # takes operations; nothing of it is on the disk
    COMMITTING = "committing"  # handed to the log writer as a whole, one phase
    PREPARING = "preparing"  # handed to the log writer as a promise, first phase
    PREPARED = "prepared"  # on the disk, messages locked, waits for its coordinator's decision
    IN_DOUBT = "in_doubt"  # prepared, and its client is gone or its decision did not reach the disk
    DECIDED_COMMIT = "decided_commit"  # the decision to commit is handed to the log writer
    DECIDED_ROLLBACK = "decided_rollback"  # the decision to roll back is handed to the log writer
    COMMITTED = "committed"  # everything in it happened
    ROLLED_BACK = "rolled_back"  # nothing in it happened


class TransactionEvent(Enum):
    """What the world tells a transaction."""

    COMMIT = "commit"  # its client, its coordinator or a hand wants it committed
    ROLL_BACK = "roll back"  # one of them wants it rolled back
    PREPARE = "prepare"  # its coordinator wants the promise
    DURABLE = "durable"  # the log writer says that what it was handed is on the disk
    REFUSED = "refused"  # the log writer says that nothing of what it was handed was done
    CRASH = "crash"  # the process ended; this is what the next one finds


_S, _E = TransactionState, TransactionEvent

MOVES: dict[tuple[TransactionState, TransactionEvent], TransactionState] = {
    (_S.ACTIVE, _E.COMMIT): _S.COMMITTING,
    (_S.ACTIVE, _E.PREPARE): _S.PREPARING,
    (_S.ACTIVE, _E.ROLL_BACK): _S.ROLLED_BACK,
    (_S.ACTIVE, _E.CRASH): _S.ROLLED_BACK,
    (_S.COMMITTING, _E.DURABLE): _S.COMMITTED,
    (_S.COMMITTING, _E.REFUSED): _S.ACTIVE,
    (_S.PREPARING, _E.DURABLE): _S.PREPARED,
    (_S.PREPARING, _E.REFUSED): _S.ACTIVE,
    (_S.PREPARED, _E.COMMIT): _S.DECIDED_COMMIT,
    (_S.PREPARED, _E.ROLL_BACK): _S.DECIDED_ROLLBACK,
    (_S.PREPARED, _E.CRASH): _S.IN_DOUBT,
    (_S.IN_DOUBT, _E.COMMIT): _S.DECIDED_COMMIT,
    (_S.IN_DOUBT, _E.ROLL_BACK): _S.DECIDED_ROLLBACK,
    (_S.IN_DOUBT, _E.CRASH): _S.IN_DOUBT,
    (_S.DECIDED_COMMIT, _E.DURABLE): _S.COMMITTED,
    (_S.DECIDED_COMMIT, _E.REFUSED): _S.IN_DOUBT,
    (_S.DECIDED_ROLLBACK, _E.DURABLE): _S.ROLLED_BACK,
    (_S.DECIDED_ROLLBACK, _E.REFUSED): _S.IN_DOUBT,
}
"""A crash while the log writer has a transaction (COMMITTING, PREPARING, DECIDED_*) has no row: the disk says whether
DURABLE came first, and a transaction is then either gone, finished, or found as PREPARED before the crash was."""

FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})
STORY_LENGTH_MAX = 32  # moves told in an error; a transaction that is refused again and again must not grow


class TransactionMachine:
    """Where one transaction is, and how it came there."""

    __slots__ = ("_story", "name", "state")

    def __init__(self, name: str, state: TransactionState = TransactionState.ACTIVE) -> None:
        self.name = name
        self.state = state
        self._story = [state.value]

    @property
    def story(self) -> str:
        """The states it went through, and why."""
        return " ".join(self._story)

    def allows(self, event: TransactionEvent) -> bool:
        """Whether the event has a move from here."""
        return (self.state, event) in MOVES

    def step(self, event: TransactionEvent) -> TransactionState:
        """Move, and say where to.

        Raises:
            IllegalTransactionMove: no such move from here; nothing changed.
        """
        target = MOVES.get((self.state, event))
        if target is None:
            raise IllegalTransactionMove(
                f"{self.name} is {self.state.value}: cannot {event.value}. Story: {self.story}"
            )
        self.state = target
        self._story += [f"—{event.value}→", target.value]
        if len(self._story) > 2 * STORY_LENGTH_MAX + 1:
            del self._story[1:3]
        return target

    def require_active(self, operation: str) -> None:
        """Refuse an operation on a transaction that takes none any more."""
        if self.state is not TransactionState.ACTIVE:
            raise IllegalTransactionMove(f"{self.name} is {self.state.value}: cannot {operation}. Story: {self.story}")
