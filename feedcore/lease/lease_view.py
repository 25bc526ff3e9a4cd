"""An adapter's own view of its lease: whether it may transmit as active now, and when it must renew.

It trusts only its own monotonic clock. Invariant: while `may_transmit(now_ns)` is true, the lease store cannot have
granted the next epoch because this lease ran out, since the store counts the same term from a later moment.
"""

from __future__ import annotations

from tandemfeed.feedcore.replica.effects import RenewLease

RENEWALS_PER_TTL = 4  # survives two lost renewals and a slow third


class LeaseView:
    """The lease of one feed as its adapter sees it."""

    def __init__(self, ttl_ns: int) -> None:
        self.epoch = 0  # the epoch held, 0 if none
        self.last_epoch = 0  # the newest epoch ever seen
        self.is_by_consent = False  # the store's last term has run out; only consent extends the lease
        self._valid_until_ns = 0
        self._renew_at_ns: int | None = None
        self._renew_every_ns = ttl_ns // RENEWALS_PER_TTL

    @property
    def is_held(self) -> bool:
        """True from the grant until the lease is dropped; `may_transmit` also checks the clock."""
        return self.epoch != 0

    def may_transmit(self, now_ns: int) -> bool:
        """True while this adapter may transmit as active."""
        return self.epoch != 0 and now_ns < self._valid_until_ns

    def on_granted(self, epoch: int, valid_until_ns: int, now_ns: int) -> bool:
        """Take a grant. Returns False, and changes nothing, if its epoch is not newer or the grant has run out."""
        if epoch <= self.last_epoch or now_ns >= valid_until_ns:
            return False
        self.epoch = self.last_epoch = epoch
        self._valid_until_ns = valid_until_ns
        self._renew_at_ns = now_ns + self._renew_every_ns
        return True

    def on_renewed(self, epoch: int, valid_until_ns: int) -> None:
        """Take a renewal. It never shortens the lease; a renewal of another epoch is ignored."""
        if epoch == self.epoch:
            self._valid_until_ns = max(self._valid_until_ns, valid_until_ns)
            self.is_by_consent = False

    def on_consent(self, valid_until_ns: int) -> None:
        """Extend the lease without the store, because no other adapter will accept a grant before `valid_until_ns`."""
        self._valid_until_ns = max(self._valid_until_ns, valid_until_ns)
        self.is_by_consent = True

    def on_contact(self, consent_until_ns: int, now_ns: int) -> None:
        """Note that the store is back in contact. Only it extends the lease now, so renew before consent runs out."""
        if self.is_by_consent:
            self.on_consent(consent_until_ns)
        self.renew_at_once(now_ns)

    def renew_at_once(self, now_ns: int) -> None:
        """Make the next renewal due now."""
        self._renew_at_ns = now_ns

    def drop(self) -> None:
        """Give up the lease."""
        self.epoch = 0
        self.is_by_consent = False
        self._renew_at_ns = None

    def note_epoch(self, epoch: int) -> None:
        """Note an epoch: from now on, grants of this and older epochs are void, except the one held here."""
        self.last_epoch = max(self.last_epoch, epoch)

    def next_deadline_ns(self) -> int | None:
        """When to renew or when the lease runs out, whichever comes first."""
        return None if self._renew_at_ns is None else min(self._renew_at_ns, self._valid_until_ns)

    def on_timer(self, now_ns: int) -> RenewLease | None:
        """The renewal, if it is due."""
        if self._renew_at_ns is None or now_ns < self._renew_at_ns:
            return None
        self._renew_at_ns = now_ns + self._renew_every_ns
        return RenewLease(self.epoch)
