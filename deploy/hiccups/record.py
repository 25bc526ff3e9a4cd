"""What a hiccup meter has recorded: the longest hiccup of each short window, and how often each length occurred. Pure.

A hiccup is the time by which a sleep of a millisecond lasted too long, as in jHiccup: any process of the machine that
had to run then might have waited as long. A long hiccup counts in every window that it touches.

Invariant: memory is bounded. When the windows are used up, each becomes twice as long; lengths are rounded up by at
most 3 %.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

SLEEP_NS = 1_000_000
WINDOW_NS = 10_000_000
WINDOWS_MAX = 1 << 15  # five and a half minutes with windows of 10 ms
KEPT_BITS = 6  # of a length in microseconds; the others are rounded up
US, MS = 1_000, 1_000_000
QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}

assert WINDOWS_MAX % 2 == 0  # windows are joined in pairs


class HiccupRecorder:
    """Records the hiccups of one meter.

    Args:
        began_ns: by the clock that all later times are of.
    """

    def __init__(self, began_ns: int) -> None:
        self._began_ns, self._window_ns = began_ns, WINDOW_NS
        self._longest_us: list[int] = []
        self._counts: Counter[int] = Counter()

    def add(self, due_ns: int, woke_ns: int) -> None:
        """Add one sleep: when it should have ended, and when it did."""
        hiccup_us = max(woke_ns - due_ns, 0) // US
        while (last := (woke_ns - self._began_ns) // self._window_ns) >= WINDOWS_MAX:
            self._join_windows()
        first = (due_ns - self._began_ns) // self._window_ns
        self._longest_us += [0] * (last + 1 - len(self._longest_us))
        for place in range(first, last + 1):
            self._longest_us[place] = max(self._longest_us[place], hiccup_us)
        # The sleeps that would have begun during a long hiccup would have ended late as well (coordinated omission).
        for late_us in range(hiccup_us, -1, -SLEEP_NS // US):
            self._counts[_rounded_up(late_us)] += 1

    def record(self) -> Hiccups:
        """What was recorded so far."""
        return Hiccups(self._began_ns, self._window_ns, tuple(self._longest_us), dict(self._counts))

    def _join_windows(self) -> None:
        even, odd = self._longest_us[::2], self._longest_us[1::2]
        odd += [0] * (len(even) - len(odd))
        self._longest_us = list(map(max, even, odd))
        self._window_ns *= 2


@dataclass(frozen=True, slots=True)
class Hiccups:
    """A completed record.

    Attributes:
        began_ns: when the first window began (monotonic clock).
        window_ns: length of each window.
        longest_us: the longest hiccup that touched each window.
        counts: how many sleeps lasted this many microseconds too long.
    """

    began_ns: int
    window_ns: int
    longest_us: tuple[int, ...]
    counts: dict[int, int]

    def longest_ms(self, from_ns: int, until_ns: int) -> float:
        """The longest hiccup that touched the time between these two."""
        first = max((from_ns - self.began_ns) // self.window_ns, 0)
        end = max((until_ns - self.began_ns) // self.window_ns + 1, 0)
        return max(self.longest_us[first:end], default=0) * US / MS

    def quantile_ms(self, share: float) -> float:
        """The length that this share of all sleeps did not exceed."""
        wanted = share * sum(self.counts.values())
        for late_us, count in sorted(self.counts.items()):
            wanted -= count
            if wanted <= 0:
                return late_us * US / MS
        return 0.0

    def figures(self) -> dict[str, float]:
        """Quantiles and maximum in milliseconds, by the names in JSON reports."""
        return {name: round(self.quantile_ms(share), 3) for name, share in QUANTILES.items()}

    def around(self, at_ns: int, window_ms: float) -> tuple[list[float], list[float]]:
        """For a plot: (middle of each window in ms since `at_ns`, its longest hiccup in ms)."""
        first = max((at_ns - int(window_ms * MS) - self.began_ns) // self.window_ns, 0)
        end = max((at_ns + int(window_ms * MS) - self.began_ns) // self.window_ns + 1, 0)
        middles = [self.began_ns + self.window_ns * (2 * place + 1) // 2 for place in range(first, end)]
        longest = [late_us * US / MS for late_us in self.longest_us[first:end]]
        return [(each - at_ns) / MS for each in middles[: len(longest)]], longest

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `from_json`."""
        return {
            "began_ns": self.began_ns,
            "window_ns": self.window_ns,
            "longest_us": list(self.longest_us),
            "counts": sorted(self.counts.items()),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """What `as_json` returned."""
        return cls(values["began_ns"], values["window_ns"], tuple(values["longest_us"]), dict(values["counts"]))


def _rounded_up(late_us: int) -> int:
    step = 1 << max(0, late_us.bit_length() - KEPT_BITS)
    return -(-late_us // step) * step
