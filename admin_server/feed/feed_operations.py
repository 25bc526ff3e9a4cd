"""Operations on a feed that an administrator or an adapter requests: hand over, fail an adapter, readmit it.

Each is a sequence of steps of `FeedState`, and waits for the disk between them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from tandemfeed.admin_server.feed.feed_state import FeedState, OperationRefused
from tandemfeed.admin_server.records.lease_records import ClusterRecords, RecordsUnavailable
from tandemfeed.admin_server.settings import AdapterSettings, FeedSettings

LOG = logging.getLogger("tandemfeed.admin_server.feed.feed_operations")


class FeedOperations:
    """The operations on one feed. Safe to call from any thread."""

    def __init__(self, feed: FeedSettings, state: FeedState, records: ClusterRecords) -> None:
        self._feed, self._state, self._records = feed, state, records
        self._one_at_a_time = threading.Lock()  # otherwise two adapters could be failed, each because the other remains
        self._refusals: dict[int, str] = {}

    def hand_over(self, heir: AdapterSettings | None, by: str, *, is_failing: bool = False) -> tuple[int, str]:
        """Hand over to another adapter; return (epoch, name of the active).

        Waits until the heir holds the lease, at most for one lease term.

        Args:
            heir: the adapter that takes over; None: the best backup.
            by: the requester, for the audit log.
            is_failing: the active will be failed afterwards.

        Raises:
            OperationRefused: the hand-over was not possible, or its offer was withdrawn.
        """
        heir_id = None if heir is None else heir.adapter_id
        epoch, active = self._state.hand_over(heir_id, by, is_failing=is_failing)
        return epoch, self._state.name_of(active)

    def fail(self, adapter: AdapterSettings, reason: str, by: str, *, is_forced: bool = False) -> None:
        """Take an adapter out of its feed; if it is active, it hands over first.

        Raises:
            OperationRefused: it is the last synchronised backup and `is_forced` is false, or there is no heir.
            RecordsUnavailable: the change could not be recorded; the adapter is not failed.
        """
        self._hand_over_first(adapter, by, is_failing=True, is_forced=is_forced)
        self._fail(adapter, reason, by, is_own_request=False, is_forced=is_forced)

    def drain(self, adapter: AdapterSettings, reason: str, by: str, *, is_forced: bool = False) -> None:
        """Keep an adapter out of leases for planned maintenance; if it is active, it hands over first.

        Raises:
            OperationRefused: it is the last synchronised backup and `is_forced` is false, or there is no heir.
            RecordsUnavailable: the change could not be recorded; the adapter is not drained.
        """
        self._hand_over_first(adapter, by, is_failing=False, is_forced=is_forced)
        place = self._feed.feed_id, adapter.adapter_id
        self._take_out(
            lambda: self._state.refusal_to_fail(adapter, is_own_request=False, is_forced=is_forced),
            lambda: self._records.note_drained(*place, reason),
            lambda: self._state.drain(adapter, reason, by, is_forced=is_forced),
            lambda: self._records.note_undrained(*place),
        )

    def undrain(self, adapter: AdapterSettings, by: str) -> None:
        """Let a drained adapter become active again.

        Raises:
            OperationRefused: it is not drained.
            RecordsUnavailable: the change could not be recorded; the adapter stays drained.
        """
        with self._one_at_a_time:
            if not self._state.is_drained(adapter.adapter_id):
                raise OperationRefused(f"{adapter.name} is not drained")
            self._undrain(adapter, by)

    def throttle(self, adapters: Iterable[AdapterSettings], replay_bytes_per_s: int, by: str) -> None:
        """Limit what each of these adapters spends on replays; 0: no limit.

        Raises:
            RecordsUnavailable: not every change could be recorded; what is not recorded is not in force.
        """
        with self._one_at_a_time:
            for adapter in adapters:
                self._state.replay_limits.set(adapter.adapter_id, replay_bytes_per_s)
                self._state.announce_replay_limit(adapter, by)

    def fail_on_request(self, adapter: AdapterSettings, reason: str) -> None:
        """Fail an adapter that requests it, because by policy it is the least healthy backup."""
        if self._state.is_failed(adapter.adapter_id):
            return
        try:
            self._fail(adapter, reason, adapter.name, is_own_request=True, is_forced=False)
        except OperationRefused as refused:
            if self._refusals.get(adapter.adapter_id) != str(refused):  # it may repeat the request: recorded once
                self._refusals[adapter.adapter_id] = str(refused)
                self._state.note("adapter not failed", adapter=adapter.name, asked=reason, why=str(refused))
        except RecordsUnavailable:
            LOG.exception("could not fail an adapter on its request", extra={"adapter": adapter.name, "asked": reason})

    def readmit(self, adapter: AdapterSettings, by: str) -> None:
        """Return a failed adapter to its feed; if it is drained, it may become active again.

        Raises:
            OperationRefused: it is neither failed nor drained.
            RecordsUnavailable: the change could not be recorded; the adapter stays failed.
        """
        with self._one_at_a_time:
            is_drained = self._state.is_drained(adapter.adapter_id)
            if is_drained:
                self._undrain(adapter, by)
            if not self._state.may_readmit(adapter.adapter_id):
                if is_drained:
                    return
                raise OperationRefused(f"{adapter.name} is neither failed nor drained")
            self._records.note_readmitted(self._feed.feed_id, adapter.adapter_id)
            self._refusals.pop(adapter.adapter_id, None)
            self._state.readmit(adapter, by)

    def _hand_over_first(self, adapter: AdapterSettings, by: str, *, is_failing: bool, is_forced: bool) -> None:
        """If an adapter is active, hand over, so that it can leave without a stall."""
        heirs = self._state.heirs_of(adapter.adapter_id)
        if heirs is None:
            return
        if len(heirs) == 1 and not is_forced:
            raise OperationRefused(
                f"without {adapter.name}, {self._state.name_of(heirs[0])} would be active with no synchronised "
                "backup; use --force to do it anyway"
            )
        self.hand_over(None, by, is_failing=is_failing)

    def _undrain(self, adapter: AdapterSettings, by: str) -> None:
        self._records.note_undrained(self._feed.feed_id, adapter.adapter_id)
        self._state.undrain(adapter, by)

    def _fail(self, adapter: AdapterSettings, reason: str, by: str, *, is_own_request: bool, is_forced: bool) -> None:
        place = self._feed.feed_id, adapter.adapter_id
        self._take_out(
            lambda: self._state.refusal_to_fail(adapter, is_own_request=is_own_request, is_forced=is_forced),
            lambda: self._records.note_failed(*place, reason),
            lambda: self._state.fail(adapter, reason, by, is_own_request=is_own_request, is_forced=is_forced),
            lambda: self._records.note_readmitted(*place),
        )

    def _take_out(
        self,
        refusal: Callable[[], str | None],
        record: Callable[[], None],
        perform: Callable[[], str | None],
        undo_record: Callable[[], None],
    ) -> None:
        """Record that an adapter is failed or drained before it takes effect, so that it stays so after any crash.

        Args:
            refusal: why it may not be done now; None if it may.
            perform: does it, or returns why it may no longer be done: other adapters may have left during the write.
        """
        with self._one_at_a_time:
            if (why := refusal()) is not None:
                raise OperationRefused(why)
            record()
            if (why := perform()) is not None:
                undo_record()
                raise OperationRefused(why)
