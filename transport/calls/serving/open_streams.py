"""How many streams of a service are open, in all and of each identity."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import grpc


class OpenStreams:
    """Counts a service's open streams, because each costs more than memory. Safe to call from any thread."""

    def __init__(self, count_max: int, count_of_one_max: int) -> None:
        self._count_max, self._count_of_one_max = count_max, count_of_one_max
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def one_more(self, identity: str, context: grpc.ServicerContext) -> Iterator[None]:
        """Count a stream while it is open, or refuse it."""
        with self._lock:
            own, total = self._counts[identity], self._counts.total()
            refusal = ""
            if own >= self._count_of_one_max:
                refusal = f"{identity} has {own} such calls open, which is the limit; end one first"
            elif total >= self._count_max:
                refusal = f"{total} such calls are open, which is the limit; try again later"
            else:
                self._counts[identity] += 1
        if refusal:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
        try:
            yield
        finally:
            with self._lock:
                self._counts[identity] -= 1
                if not self._counts[identity]:
                    del self._counts[identity]
