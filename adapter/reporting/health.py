"""Health state: how fit this adapter is to serve, as parts and as one score.

Backups compare scores when one of them must leave (docs/protocol.md clause 5.8), and the admin server prefers the
healthier of two equal candidates. So the score measures what makes one adapter a worse active than another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import psutil

MEMORY_COMFORTABLE = 0.25  # of all memory still available: more adds nothing
LAG_HOPELESS_MESSAGES = 100_000  # about five seconds behind at 20,000 messages a second
ERRORS_HOPELESS = 1_000  # within the window
ERROR_WINDOW_NS = 60_000_000_000  # errors before that say nothing about the present


@dataclass(frozen=True, slots=True)
class Health:
    """The parts of the score.

    Attributes:
        memory_available_ratio: 0 to 1, of the host.
        cpu_ratio: 0 to 1, of the host, since the last sample.
        error_count: errors since the start (`Counts.error_count`).
        messages_per_second: transmitted, since the last sample.
        source_lag_messages: known to exist but not yet converted.
        recent_error_count: of `error_count`, within the last minute.
        unfit_reason: what the adapter has lost that it needs in order to serve; empty: nothing.
    """

    memory_available_ratio: float
    cpu_ratio: float
    error_count: int
    messages_per_second: float
    source_lag_messages: int
    recent_error_count: int = 0
    unfit_reason: str = ""

    @property
    def score(self) -> float:
        """0 (unfit) to 1 (idle and current): the product of how good each part is.

        It is a product because one very bad part makes the adapter unfit, however good the others are. Three parts can
        at most halve it: a busy host still serves, the network may cause the errors, and an adapter that transmits
        nothing while messages wait may be waiting for decisions.
        """
        if self.unfit_reason:
            return 0.0
        memory = min(1.0, max(0.0, self.memory_available_ratio) / MEMORY_COMFORTABLE)
        cpu = 1.0 - 0.5 * min(1.0, max(0.0, self.cpu_ratio))
        lag = 1.0 - min(1.0, max(0, self.source_lag_messages) / LAG_HOPELESS_MESSAGES)
        errors = 1.0 - 0.5 * min(1.0, self.recent_error_count / ERRORS_HOPELESS)
        rate = 0.5 if self.source_lag_messages > 0 and self.messages_per_second <= 0 else 1.0
        return memory * cpu * lag * errors * rate


@dataclass(frozen=True, slots=True)
class Counts:
    """What the adapter itself counts.

    Attributes:
        message_count: transmitted since the start.
        error_count: since the start: packets and messages refused as damaged, conversion states that differed from the
            active's, lost source messages.
        source_lag_messages: as in `Health`.
    """

    message_count: int
    error_count: int
    source_lag_messages: int


class HealthSampler:
    """Samples the host. Call it about once a second; a sample takes a millisecond."""

    def __init__(self) -> None:
        psutil.cpu_percent(None)
        self._messages = 0
        self._sampled_at_ns: int | None = None
        self._errors: deque[tuple[int, int]] = deque()  # (sampled at, error_count); the window and one before

    def sample(self, counts: Counts, now_ns: int) -> Health:
        """Take the parts from the host and from these counts."""
        memory = psutil.virtual_memory()
        cpu = psutil.cpu_percent(None) / 100
        recent = self._recent_errors(counts.error_count, now_ns)
        rate = self._rate(counts.message_count, now_ns)
        return Health(
            memory.available / memory.total, cpu, counts.error_count, rate, counts.source_lag_messages, recent
        )

    def _rate(self, message_count: int, now_ns: int) -> float:
        elapsed_ns = now_ns - self._sampled_at_ns if self._sampled_at_ns is not None else 0
        rate = (message_count - self._messages) * 1e9 / elapsed_ns if elapsed_ns > 0 else 0.0
        self._messages, self._sampled_at_ns = message_count, now_ns
        return rate

    def _recent_errors(self, error_count: int, now_ns: int) -> int:
        self._errors.append((now_ns, error_count))
        while len(self._errors) > 1 and now_ns - self._errors[1][0] >= ERROR_WINDOW_NS:
            self._errors.popleft()
        at_ns, before = self._errors[0]
        is_first_minute = now_ns - at_ns < ERROR_WINDOW_NS
        return error_count if is_first_minute else error_count - before
