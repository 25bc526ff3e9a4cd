"""What the lease core decides: its effects. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Granted:
    """`adapter_id` holds the lease on `epoch` now, and on nothing else."""

    adapter_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The holder's lease goes on for a term."""

    adapter_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Vacated:
    """Nobody holds the lease now."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class TermNoted:
    """To be written down: whoever is granted, renewed or offered a lease from now on may believe for `ttl_ns`.

    Stands before the decision that tells the term.
    """

    ttl_ns: int


@dataclass(frozen=True, slots=True)
class Offered:
    """`heir` may open `epoch` where `after_epoch` ends, when it hears that it has ended.

    Always followed by the order to the holder.
    """

    heir: int
    epoch: int
    after_epoch: int


@dataclass(frozen=True, slots=True)
class OrderedHandOver:
    """`holder` shall end `epoch` in favour of `heir`."""

    holder: int
    epoch: int
    heir: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """`adapter_id`, to whom `epoch` was offered, holds the lease now; `former` has given it up."""

    adapter_id: int
    epoch: int
    former: int


HOLDER_WENT_ON = "the holder went on"  # for the whole term of the offer


@dataclass(frozen=True, slots=True)
class OfferWithdrawn:
    """The offer of `epoch` stands no more. If its heir's stream ended, the heir may have begun it, as may any holder
    whose stream ends."""

    heir: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class HandOverRefused:
    """Nothing changes. `reason` reads behind the adapter's name; `adapter_id` 0: it stands alone."""

    reason: str
    adapter_id: int = 0


LeaseDecision = (
    Granted | Renewed | Vacated | TermNoted | Offered | OrderedHandOver | HandedOver | OfferWithdrawn | HandOverRefused
)
