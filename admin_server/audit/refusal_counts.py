"""Which refusals the audit log records singly, and which it counts. Pure.

The first refusal of a caller for a reason is recorded immediately, the following ones as a count each minute, so that a
flood of refused calls cannot fill the disk. Addresses without their ports distinguish callers, because identities of
refused callers are only claims. Both the rows of an address and all rows are limited; what exceeds a limit is counted
in a common row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

INTERVAL_NS = 60_000_000_000
ROW_COUNT_MAX = 256  # 256 entries a minute of about 400 bytes are at most 150 MB a day
ROWS_OF_AN_ADDRESS_MAX = 16
MANY = "(many)"


@dataclass(frozen=True, slots=True)
class Refused:
    """What refusals have in common that are counted together."""

    event: str
    code: str
    identity: str
    address: str
    reason: str


@dataclass(slots=True)
class _Row:
    since_ns: int
    count: int = 0  # without the first, which was recorded


class RefusalCounts:
    """The refusals of the last minute. Not safe for several threads at once."""

    def __init__(self) -> None:
        self._rows: dict[Refused, _Row] = {}
        self._row_counts: Counter[str] = Counter()  # by address

    def add(self, refused: Refused, now_ns: int) -> bool:
        """Note a refusal; True if it must be recorded by itself."""
        if refused not in self._rows:
            refused = self._within_limits(refused)
        row = self._rows.get(refused)
        if row is not None:
            row.count += 1
            return False
        self._rows[refused] = _Row(now_ns)
        self._row_counts[refused.address] += 1
        return True

    def next_deadline_ns(self) -> int | None:
        """When `due` next returns something; None: never, without further refusals."""
        return next((row.since_ns + INTERVAL_NS for row in self._rows.values()), None)  # the oldest is first

    def due(self, now_ns: int | None) -> list[tuple[Refused, Mapping[str, object]]]:
        """End the rows of more than a minute ago; return those that counted further refusals, with what to record.

        Args:
            now_ns: None: end all rows.
        """
        ended = [
            (refused, row)
            for refused, row in self._rows.items()
            if now_ns is None or row.since_ns + INTERVAL_NS <= now_ns
        ]
        for refused, _ in ended:
            del self._rows[refused]
            self._row_counts[refused.address] -= 1
            if not self._row_counts[refused.address]:
                del self._row_counts[refused.address]
        return [(refused, {"count": row.count}) for refused, row in ended if row.count]

    def _within_limits(self, refused: Refused) -> Refused:
        if len(self._rows) >= ROW_COUNT_MAX:
            return Refused("call refused", MANY, MANY, MANY, MANY)
        if self._row_counts[refused.address] >= ROWS_OF_AN_ADDRESS_MAX:
            return Refused("call refused", MANY, MANY, refused.address, MANY)
        return refused
