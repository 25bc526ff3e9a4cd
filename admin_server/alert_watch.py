"""Watches the feeds: what `alerts_of` finds is logged and kept in the feed's history, when it begins and when it ends.

Invariant: it decides nothing. An alert counts once it was found twice in a row, and has ended once it was not found for
`END_COUNT` looks, so that one which comes and goes does not fill the history.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from tandemfeed.admin_server.alerts import Alert, Level, Thresholds, alerts_of
from tandemfeed.admin_server.feed.broker import FeedBroker
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

LOG = logging.getLogger("tandemfeed.admin_server.alerts")
LOOK_EVERY_S = 1.0
BEGIN_COUNT, END_COUNT = 2, 10  # looks
LOG_LEVELS = {Level.WARNING: logging.WARNING, Level.CRITICAL: logging.ERROR}


class AlertRecord:
    """The alerts of one feed, over time. Pure."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}  # about -> looks in a row that found it
        self._present: dict[str, int] = {}  # about -> looks in a row that did not find it

    def on_look(self, alerts: Sequence[Alert]) -> tuple[list[Alert], list[str]]:
        """Take what a look found; returns which alerts began, and what those that ended were about."""
        by_about = {alert.about: alert for alert in alerts}
        self._found = {about: self._found.get(about, 0) + 1 for about in by_about}
        began = [
            alert
            for about, alert in by_about.items()
            if about not in self._present and self._found[about] >= BEGIN_COUNT
        ]
        for about in list(self._present):
            self._present[about] = 0 if about in by_about else self._present[about] + 1
        ended = [about for about, missed in self._present.items() if missed >= END_COUNT]
        for about in ended:
            del self._present[about]
        self._present.update((alert.about, 0) for alert in began)
        return began, ended


class AlertWatch:
    """Looks once a second, in a thread of its own.

    Args:
        brokers: the feeds that this server is active for, now.
    """

    def __init__(self, brokers: Callable[[], Mapping[str, FeedBroker]]) -> None:
        self._brokers, self._records = brokers, dict[str, tuple[FeedBroker, AlertRecord]]()
        self._is_stopped = threading.Event()
        self._thread = start_thread(self._run, "alerts", mark_unhealthy)

    def stop(self) -> None:
        """End the thread."""
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped.wait(LOOK_EVERY_S):
            for name, broker in self._brokers().items():
                self._look(name, broker)

    def _look(self, name: str, broker: FeedBroker) -> None:
        known = self._records.get(name)
        if known is None or known[0] is not broker:  # this server became active for the feed again
            known = self._records[name] = broker, AlertRecord()
        began, ended = known[1].on_look(alerts_of(broker.status(), Thresholds()))
        for alert in began:
            text = f"{alert.level.name.lower()}: {alert.text}"
            LOG.log(LOG_LEVELS[alert.level], "alert began", extra={"feed": name, "alert": text})
            broker.note_alert("alert began", text)
        for about in ended:
            LOG.info("alert ended", extra={"feed": name, "alert": about})
            broker.note_alert("alert ended", about)
