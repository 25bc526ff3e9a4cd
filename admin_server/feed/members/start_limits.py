"""How often an adapter may begin a new start, so that one that registers in a loop does not keep others busy. Pure.

Every start is recorded on the disk and announced to all adapters and clients of the feed, which derive keys for it. A
supervisor that restarts a crashing adapter needs one in a second or less often. A start that is resumed, as after a
lost connection, costs none of this and is not limited.

Invariant: within any time, an adapter begins not more than `BURST` starts beyond one a second.
"""

from __future__ import annotations

from tandemfeed.feedcore.token_bucket import TokenBucket

BURST = 30  # starts that an adapter may begin in short succession, as in a test of its deployment
PER_SECOND = 1


class StartLimits:
    """The limits of one feed's adapters. One thread at a time."""

    def __init__(self) -> None:
        self._buckets: dict[int, TokenBucket] = {}

    def begin(self, adapter_id: int, now_ns: int) -> int:
        """An adapter asks for a new start. Returns 0 if it may begin now, and otherwise the wait in nanoseconds."""
        bucket = self._buckets.get(adapter_id)
        if bucket is None:
            bucket = self._buckets[adapter_id] = TokenBucket(PER_SECOND, BURST - 1, now_ns)
        wait_ns = bucket.wait_ns(now_ns)
        if not wait_ns:
            bucket.spend(1, now_ns)
        return wait_ns
