"""Health state: how fit this adapter is to serve, as parts and as one score."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

MEMORY_COMFORTABLE = 0.25  # of all memory still available: more adds nothing
LAG_HOPELESS_MESSAGES = 100_000  # about five seconds behind at 20,000 messages a second
ERRORS_HOPELESS = 1_000


@dataclass(frozen=True, slots=True)
class Health:
    """The parts.

    Attributes:
        memory_available_ratio: 0 to 1, of the host.
        cpu_ratio: 0 to 1, of the host, since the last sample.
        error_count: source messages and packets refused since start.
        messages_per_second: transmitted, since the last sample.
        source_lag_messages: known to exist and not yet converted.
    """

    memory_available_ratio: float
    cpu_ratio: float
    error_count: int
    messages_per_second: float
    source_lag_messages: int

    @property
    def score(self) -> float:
        """0 (unfit) to 1 (idle and current): the product of how good each part is.

        A product, because one hopeless part makes the whole unfit, however good the others are. CPU counts half: a
        busy host still serves.
        """
        memory = min(1.0, self.memory_available_ratio / MEMORY_COMFORTABLE)
        cpu = 1.0 - 0.5 * min(1.0, self.cpu_ratio)
        lag = 1.0 - min(1.0, self.source_lag_messages / LAG_HOPELESS_MESSAGES)
        errors = 1.0 - 0.5 * min(1.0, self.error_count / ERRORS_HOPELESS)
        return memory * cpu * lag * errors


class HealthSampler:
    """Samples the host; call about once a second, it costs a millisecond."""

    def __init__(self) -> None:
        psutil.cpu_percent(None)
        self._messages = 0
        self._sampled_at_ns: int | None = None

    def sample(self, message_count: int, error_count: int, source_lag_messages: int, now_ns: int) -> Health:
        """Parts from the host and from the counts given."""
        memory = psutil.virtual_memory()
        elapsed_ns = now_ns - self._sampled_at_ns if self._sampled_at_ns is not None else 0
        rate = (message_count - self._messages) * 1e9 / elapsed_ns if elapsed_ns > 0 else 0.0
        self._messages, self._sampled_at_ns = message_count, now_ns
        cpu = psutil.cpu_percent(None) / 100
        return Health(memory.available / memory.total, cpu, error_count, rate, source_lag_messages)
