"""The decisions of the lease core: its effects. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Granted:
    """`adapter_id` now holds the lease for `epoch`, and no other epoch."""

    adapter_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The holder's lease continues for another term."""

    adapter_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Vacated:
    """No adapter holds the lease now."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class TermNoted:
    """Must be recorded: the term of every later grant, renewal or offer may be as long as `ttl_ns`.

    Precedes the decision that announces such a term.
    """

    ttl_ns: int


@dataclass(frozen=True, slots=True)
class Offered:
    """`heir` may open `epoch` when it hears that `after_epoch` has ended, and where it ended.

    Once the heir accepts, the holder is ordered to hand over.
    """

    heir: int
    epoch: int
    after_epoch: int


@dataclass(frozen=True, slots=True)
class OrderedHandOver:
    """`holder` must end `epoch` so that `heir` can take over."""

    holder: int
    epoch: int
    heir: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """`adapter_id` now holds the lease for `epoch`, which it was offered; `former` has given it up."""

    adapter_id: int
    epoch: int
    former: int


HOLDER_CONTINUED = "the holder did not hand over in time"  # the whole term of the offer has passed


@dataclass(frozen=True, slots=True)
class OfferWithdrawn:
    """The offer of `epoch` is no longer valid. If it ended because the heir's stream ended, the heir may already have
    opened the epoch."""

    heir: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class HandOverRefused:
    """Nothing changes. `reason` follows the name of `adapter_id`; if that is 0, it is a complete sentence."""

    reason: str
    adapter_id: int = 0


LeaseDecision = (
    Granted | Renewed | Vacated | TermNoted | Offered | OrderedHandOver | HandedOver | OfferWithdrawn | HandOverRefused
)
