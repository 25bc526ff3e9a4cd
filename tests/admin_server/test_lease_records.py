"""What every keeper of lease records promises. One that several servers share is held to the same tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from admin_server.lease_records import LeaseRecords, RecordsUnavailable
from admin_server.store import Store

Open = Callable[[], LeaseRecords]


@pytest.fixture
def open_records(tmp_path: Path) -> Iterator[Open]:
    """Opens the same records anew at every call, as a server does at a start."""
    with ExitStack() as opened:

        def open_store() -> Store:
            store = Store(tmp_path / "leases.sqlite")
            opened.callback(store.close)
            return store

        yield open_store


def test_nothing_is_known_of_a_new_feed(open_records: Open) -> None:
    records = open_records()
    assert (records.reserved_end(1), records.last_lease(1), records.failed_adapters(1)) == (0, None, {})


def test_reserved_epochs_are_found_again_and_never_shrink(open_records: Open) -> None:
    records = open_records()
    end = records.reserve_epochs(1, 0)
    assert end > 0
    further = records.reserve_epochs(1, end)
    assert further > end
    records.reserve_epochs(1, 0)
    assert open_records().reserved_end(1) == further
    assert records.reserved_end(2) == 0


def test_the_holder_noted_last_is_found_again(open_records: Open) -> None:
    records = open_records()
    for epoch, adapter_id in ((1, 1), (2, 2), (3, 1)):
        records.note_lease(1, epoch, adapter_id)
    assert open_records().last_lease(1) == (3, 1)
    assert records.last_lease(2) is None


def test_a_failed_adapter_stays_failed_until_it_is_readmitted(open_records: Open) -> None:
    records = open_records()
    records.note_failed(1, 2, "out of sync")
    records.note_failed(1, 2, "out of sync again")
    records.note_failed(1, 3, "by hand")
    assert open_records().failed_adapters(1) == {2: "out of sync again", 3: "by hand"}
    assert records.failed_adapters(2) == {}
    records.note_readmitted(1, 2)
    records.note_readmitted(1, 2)
    assert open_records().failed_adapters(1) == {3: "by hand"}


def test_a_store_that_cannot_be_asked_says_so_as_records_do(tmp_path: Path) -> None:
    store = Store(tmp_path / "leases.sqlite")
    store.close()
    with pytest.raises(RecordsUnavailable):
        store.reserve_epochs(1, 0)
    with pytest.raises(RecordsUnavailable):
        store.note_lease(1, 1, 1)
