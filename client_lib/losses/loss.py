"""What the loss report has of a loss. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

JOINED_NS = 1_000_000_000  # losses of one kind that follow within this time are one entry


class LossCause(StrEnum):
    """Why something did not arrive, or was not delivered."""

    NETWORK = "network"
    """It was not received, although the application kept up."""
    APPLICATION = "slow application"
    """Receive queues had been full for long, or the subscription's policy dropped it."""
    SOURCE = "source"
    """The active adapter declared the source messages lost."""


class Outcome(StrEnum):
    """What became of it."""

    COVERED = "covered"
    """One adapter's copy is missing. If all are, an entry of messages says what became of them."""
    REPLAYED = "replayed"
    """An adapter's replay service had it."""
    FILLED = "filled"
    """It arrived after a gap had been declared."""
    LOST = "lost"
    """It was not delivered."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One entry.

    Attributes:
        first_at_ns, last_at_ns: the wall clock when the first and the last of it was noticed.
        unit: what is counted and numbered: "packets" of one adapter's stream, by packet counter; "messages" by
            `message_seq`; "source messages" by `source_seq`.
        first, end: the lowest number, and one past the highest.
        count: how many of these are missing.
        times: how many losses the entry joins.
        adapter: the one whose packets are missing, or that replayed the messages; empty: none.
        source_stream_id: of source messages; 0 otherwise.
        detail: more about the cause.
    """

    first_at_ns: int
    last_at_ns: int
    feed: str
    topic: str
    session: int
    cause: LossCause
    outcome: Outcome
    unit: str
    first: int
    end: int
    count: int
    times: int = 1
    adapter: str = ""
    source_stream_id: int = 0
    detail: str = ""

    def joined(self, other: Loss) -> Loss | None:
        """This loss and a later one of the same kind as one entry; None if they are two.

        Two if the wall clock was set back in between: each entry has times of one clock.
        """
        if self._kind != other._kind or not 0 <= other.first_at_ns - self.last_at_ns < JOINED_NS:
            return None
        return replace(
            self,
            last_at_ns=other.last_at_ns,
            first=min(self.first, other.first),
            end=max(self.end, other.end),
            count=self.count + other.count,
            times=self.times + other.times,
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Loss:
        """The reverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        causes = {"cause": LossCause(document["cause"]), "outcome": Outcome(document["outcome"])}
        return cls(**{**document, **causes})

    @property
    def _kind(self) -> tuple[object, ...]:
        whose = self.topic, self.session, self.adapter, self.source_stream_id
        return self.feed, *whose, self.cause, self.outcome, self.unit, self.detail
