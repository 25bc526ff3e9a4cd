"""The states of a transaction and the table of legal moves. Pure: no clock, file or thread.

A transaction that waits for the log writer is in a separate state, so that nothing can be added to it meanwhile.
Invariant: from PREPARED on, only a decision that is on the disk ends a transaction; a crash never does.
"""

from __future__ import annotations

from enum import Enum

from tandemfeed.journal.transactional.errors import IllegalTransactionMove


class TransactionState(Enum):
    """The state of a transaction; listings show the value."""

    ACTIVE = "active"  # accepts operations; nothing of it is on the disk
    COMMITTING = "committing"  # handed to the log writer to commit in one phase
    PREPARING = "preparing"  # handed to the log writer for the first phase
    PREPARED = "prepared"  # on the disk, messages locked; waits for the coordinator's decision
    IN_DOUBT = "in_doubt"  # prepared, but its client is gone, or its decision did not reach the disk
    DECIDED_COMMIT = "decided_commit"  # the decision to commit is handed to the log writer
    DECIDED_ROLLBACK = "decided_rollback"  # the decision to roll back is handed to the log writer
    COMMITTED = "committed"  # all of it was done
    ROLLED_BACK = "rolled_back"  # none of it was done


class TransactionEvent(Enum):
    """What happens to a transaction."""

    COMMIT = "commit"  # the client, the coordinator or an operator commits it
    ROLL_BACK = "roll back"  # one of them rolls it back
    PREPARE = "prepare"  # the coordinator begins the first phase
    DURABLE = "durable"  # the log writer has put the step on the disk
    REFUSED = "refused"  # the log writer has refused the step; nothing was done
    CRASH = "crash"  # the process ended; the new state is what the next process finds


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
"""A crash while the log writer has a transaction (COMMITTING, PREPARING, DECIDED_*) has no row: the disk shows whether
DURABLE came first. The transaction is then gone, finished, or treated as PREPARED before the crash."""

FINAL = frozenset({TransactionState.COMMITTED, TransactionState.ROLLED_BACK})
STORY_LENGTH_MAX = 32  # moves listed in an error; bounded, because a transaction can be refused many times


class TransactionMachine:
    """The state of one transaction and its history."""

    __slots__ = ("_story", "name", "state")

    def __init__(self, name: str, state: TransactionState = TransactionState.ACTIVE) -> None:
        self.name = name
        self.state = state
        self._story = [state.value]

    @property
    def story(self) -> str:
        """The states that it went through, with the events between them."""
        return " ".join(self._story)

    def allows(self, event: TransactionEvent) -> bool:
        """Whether the event is legal in this state."""
        return (self.state, event) in MOVES

    def step(self, event: TransactionEvent) -> TransactionState:
        """Move, and return the new state.

        Raises:
            IllegalTransactionMove: the event is illegal in this state; nothing changed.
        """
        target = MOVES.get((self.state, event))
        if target is None:
            raise IllegalTransactionMove(
                f"{self.name} is {self.state.value}: cannot {event.value}. States: {self.story}"
            )
        self.state = target
        self._story += [f"—{event.value}→", target.value]
        if len(self._story) > 2 * STORY_LENGTH_MAX + 1:
            del self._story[1:3]
        return target

    def require_active(self, operation: str) -> None:
        """Refuse an operation on a transaction that is no longer active."""
        if self.state is not TransactionState.ACTIVE:
            raise IllegalTransactionMove(f"{self.name} is {self.state.value}: cannot {operation}. States: {self.story}")
