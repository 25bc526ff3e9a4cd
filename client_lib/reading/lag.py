"""What happens when an application reads more slowly than messages arrive: the policy, and the events about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

OnLag: TypeAlias = Literal["replay", "drop", "conflate", "disconnect"]
LAG_MAX = 100_000  # messages of 74 bytes in packets of twenty: 8 MB
LAG_MIN = 100
LAGGED_NS = 10_000_000_000  # after which losses are not an effect of lag any more: they have been repaired
BEHIND_NS = 1_000_000_000  # for which receive queues must not have been empty until a subscription counts as lagging


@dataclass(frozen=True, slots=True)
class LagPolicy:
    """A subscription's.

    Attributes:
        on_lag: "replay": messages wait in receive queues, and those beyond are replayed from the adapters' journals.
            The others read ahead, in a thread: "drop" drops the oldest messages, "conflate" all but the newest of each
            key, "disconnect" ends the subscription.
        count_max: the messages that may wait before that.
        conflate_by: the field that is the key, together with the type of the message.
    """

    on_lag: OnLag = "replay"
    count_max: int = LAG_MAX
    conflate_by: str = "symbol"

    def __post_init__(self) -> None:
        if self.on_lag not in get_args(OnLag):
            raise ValueError(f"on_lag is {self.on_lag!r}; it must be one of {', '.join(get_args(OnLag))}")
        if not isinstance(self.count_max, int) or self.count_max < LAG_MIN:
            raise ValueError(f"lag_max is {self.count_max!r}; it must be a number of messages, at least {LAG_MIN}")

    @property
    def reads_ahead(self) -> bool:
        """Whether messages are received while the application handles others."""
        return self.on_lag != "replay"


@dataclass(frozen=True, slots=True)
class Lag:
    """How far an application is behind.

    Attributes:
        message_count: messages that wait for it; with "replay", those that are known to be missing.
        age_ns: for how long the oldest of them has waited; with "replay", for how long receive queues have not been
            empty.
        dropped_count, conflated_count: messages that it was never given.
    """

    message_count: int = 0
    age_ns: int = 0
    dropped_count: int = 0
    conflated_count: int = 0


NO_LAG = Lag()


@dataclass(frozen=True, slots=True)
class Lagging:
    """The application reads more slowly than messages arrive.

    Attributes:
        message_count: messages that wait for it; 0: they wait in receive queues, which do not tell how many there are.
    """

    message_count: int


@dataclass(frozen=True, slots=True)
class LagEnded:
    """After `Lagging`: the application has taken everything that waited.

    Attributes:
        dropped_count, conflated_count: the messages that it was not given since `Lagging`.
    """

    dropped_count: int = 0
    conflated_count: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """With `on_lag="drop"`: messages that were dropped, because too many waited. What follows was received after them.

    Attributes:
        first_message_seq, end_message_seq: the numbers of the first dropped message, and one past the last.
        message_count: how many were dropped; others between them were filtered, or had been delivered.
        sources: (source stream, first source_seq, end) of the source messages that they were made from.
    """

    channel_id: int
    session: int
    first_message_seq: int
    end_message_seq: int
    message_count: int
    sources: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Disconnected:
    """With `on_lag="disconnect"`: too many messages waited, so the subscription has ended. The last item.

    Attributes:
        message_count: messages that waited; they were not given to the application.
    """

    message_count: int
    reason: str


LagEvent: TypeAlias = Lagging | LagEnded | Dropped | Disconnected


class QueueWatch:
    """Notices that receive queues are not empty for long, which is how an application is slow that does not read ahead.
    Pure."""

    def __init__(self) -> None:
        self._since_ns: int | None = None  # None: they were empty in the last turn
        self._turn_at_ns: int | None = None
        self._lagged_at_ns: int | None = None
        self._is_lagging = False

    def age_ns(self, now_ns: int) -> int:
        """For how long they have not been empty."""
        since_ns = self._since_ns  # the loop's thread may change it meanwhile
        return 0 if since_ns is None else max(0, now_ns - since_ns)

    def has_lagged(self, now_ns: int) -> bool:
        """Whether the application lags, or did a moment ago: then what is missing overflowed the queues."""
        return self._lagged_at_ns is not None and now_ns - self._lagged_at_ns < LAGGED_NS

    def on_turn(self, *, has_more: bool, now_ns: int) -> Lagging | LagEnded | None:
        """A turn of the loop has read from the queues, and left some of them with more."""
        turn_at_ns, self._turn_at_ns = self._turn_at_ns, now_ns
        if not has_more:
            was_lagging, self._is_lagging, self._since_ns = self._is_lagging, False, None
            return LagEnded() if was_lagging else None
        if self._since_ns is None:
            self._since_ns = now_ns if turn_at_ns is None else turn_at_ns  # they filled since then
        if now_ns - self._since_ns < BEHIND_NS:
            return None
        was_lagging, self._is_lagging, self._lagged_at_ns = self._is_lagging, True, now_ns
        if was_lagging:
            return None
        return Lagging(0)
