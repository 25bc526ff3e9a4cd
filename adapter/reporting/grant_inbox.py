"""Grant notices as events for the loop, which receives them itself: no other thread is in the path of a takeover."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from tandemfeed.adapter.mailbox import Event
from tandemfeed.adapter.peers.epoch_knowledge import EpochKnowledge
from tandemfeed.feedcore.replica.effects import AdapterEffect
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tandemfeed.transport.calls.notices.adapter import GrantNoticeReceiver
from tandemfeed.transport.calls.notices.layout import GrantNotice

LOG = logging.getLogger("tandemfeed.adapter.reporting.grant_inbox")


def open_grant_notices(endpoint: str) -> GrantNoticeReceiver | None:
    """Receive grant notices at the UDP port of this adapter's calls; None, and a warning, if it is not available."""
    try:
        return GrantNoticeReceiver(endpoint)
    except OSError as refused:
        LOG.warning("cannot receive grant notices; a takeover will take longer", extra={"why": str(refused)})
        return None


class GrantInbox:
    """For the loop: what to do about each grant notice that arrives.

    Args:
        valid_until_ns: of a lease that is granted with (report_id, ttl_ns).
        epochs: keeps the proofs that come with the grants.
    """

    def __init__(
        self,
        receiver: GrantNoticeReceiver,
        engine: AdapterEngine,
        valid_until_ns: Callable[[int, int], int],
        epochs: EpochKnowledge,
    ) -> None:
        self._receiver, self._engine, self._valid_until_ns = receiver, engine, valid_until_ns
        self._epochs = epochs

    def fileno(self) -> int:
        """Readable while datagrams wait."""
        return self._receiver.fileno()

    def take(self, count_max: int) -> list[Event]:
        """The grants among the next datagrams. The order that follows each of them changes nothing."""
        return [partial(self._take, notice) for notice in self._receiver.take(count_max)]

    def _take(self, notice: GrantNotice, now_ns: int) -> list[AdapterEffect]:
        self._epochs.keep(notice.epoch_proof)
        until_ns = self._valid_until_ns(notice.report_id, notice.ttl_ns)
        return self._engine.on_lease_granted(notice.epoch, until_ns, now_ns)
