"""Runs on a small file system: fills the store, consumes from it, opens it while full, and frees space."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tandemfeed.journal.transactional import StoreFull, StoreLimits, TransactionalStore
from tests.journal.transactional.store_copies import bodies, put_all

LIMITS = StoreLimits(log_bytes_max=500_000, volatile_memory_bytes_max=10_000)


def opened(root: Path) -> TransactionalStore:
    return TransactionalStore.open(root / "store", limits=LIMITS)


def numbers(store: TransactionalStore) -> list[int]:
    return [int(body[:6]) for body in bodies(store, "orders")]


def put_until_full(store: TransactionalStore, number: int) -> int:
    with pytest.raises(StoreFull, match="Free disk space"):  # noqa: PT012
        while True:
            put_all(store, "orders", b"%06d" % number + bytes(3_000))
            number += 1
    return number


def consume(store: TransactionalStore, count: int) -> None:
    for _ in range(count):
        with store.transaction() as transaction:
            message = transaction.get("orders")
            assert message is not None
            transaction.ack(message)


def fill(path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while os.write(descriptor, bytes(4096)):
            pass
    except OSError:
        os.close(descriptor)


def main(root: Path) -> None:
    """Run all steps."""
    with opened(root) as store:
        store.create_queue("orders")
        full_at = put_until_full(store, 0)
        assert numbers(store) == list(range(full_at))
        consume(store, full_at // 2)
        left = list(range(full_at // 2, full_at))
        again_at = put_until_full(store, full_at)  # uses the freed pages
        assert again_at > full_at
        left += range(full_at, again_at)
        assert numbers(store) == left
        with pytest.raises(StoreFull, match="swap file"):
            put_all(store, "orders", *[bytes(9_000)] * 600, persistent=False)
        assert store.problems() == []
    with opened(root) as store:
        assert numbers(store) == left
    fill(root / "filler")
    with pytest.raises(StoreFull, match="Free disk space"):
        TransactionalStore.open(root / "another")
    with opened(root) as store:
        assert numbers(store) == left
        consume(store, 1)
    (root / "filler").unlink()
    with opened(root) as store:
        assert numbers(store) == left[1:]
        put_all(store, "orders", b"%06d" % again_at)
        assert store.problems() == []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
