"""Logs the events of a subscription whose application does not take them, so that none is lost silently."""

from __future__ import annotations

import logging

from tandemfeed.client_lib.items import Event, Filled, HistoryShortened, Revoked
from tandemfeed.client_lib.reading.lag import Disconnected, Dropped, Lagging
from tandemfeed.client_lib.reading.storage import NotStored
from tandemfeed.client_lib.stream.trust.stream_trust import Distrusted
from tandemfeed.feedcore.merge.effects import Diverged, Gap, ProvisionalGap, SessionChanged, SourceGap

log = logging.getLogger(__name__)

# What an application that ignores events must know of; Python prints warnings even where logging is not set up.
LOSSES = (
    *(Gap, ProvisionalGap, SourceGap, Filled, Diverged, Distrusted, Revoked),
    *(Lagging, Dropped, Disconnected, NotStored, HistoryShortened),
)


def log_event(event: Event) -> None:
    """Log losses and alarms as warnings, and all else as information."""
    is_loss = isinstance(event, LOSSES) or (isinstance(event, SessionChanged) and not event.is_complete)
    log.log(logging.WARNING if is_loss else logging.INFO, "%s", event)
