"""A takeover's grant waits for no other writer: not for one that holds the records, and not for a disk that is slow."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from tandemfeed.admin_server.records.lease_records import EPOCH_BLOCK
from tandemfeed.admin_server.records.notes import NOTES, read_notes
from tandemfeed.admin_server.server import AdminServer
from tandemfeed.feedcore.replica.roles.states import ReplicaState
from tests.admin_server.adapter_by_hand import Adapter
from tests.admin_server.cluster_files import PATIENT, running_server
from tests.losing_disk import losing_disk

FOR_EVER_MS = 600_000


@contextmanager
def records_held(server: AdminServer) -> Iterator[None]:
    """Another connection has the records and does not end; what needs them waits for it."""
    path = server.folder.path / "leases.sqlite"
    server.brokers["equities"]._records._database._connection.execute(  # type: ignore[attr-defined]
        f"PRAGMA busy_timeout={FOR_EVER_MS}"
    )
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def slow_disk(server: AdminServer) -> Iterator[None]:
    """No flush of the notes, and no renaming of them, ends."""
    reached, go = threading.Event(), threading.Event()

    def wait(operation: str, path: Path) -> None:
        if operation in ("flush", "rename") and NOTES in path.name:
            reached.set()
            assert go.wait(60)

    folder = server.folder.path
    with losing_disk(folder, folder.with_name("kept"), wait):
        server.brokers["equities"]._records.note_session(1, 20_261_122)
        assert reached.wait(60)
        yield
        go.set()


@contextmanager
def renewing(adapter: Adapter, epoch: int) -> Iterator[Callable[[], None]]:
    """An active adapter that renews its lease until the test silences it."""
    silenced = threading.Event()

    def renew() -> None:
        while not silenced.wait(0.05):
            adapter.report(ReplicaState.ACTIVE, 5, renew_epoch=epoch)

    thread = threading.Thread(target=renew)
    thread.start()

    def be_silent() -> None:
        silenced.set()
        thread.join()

    try:
        yield be_silent
    finally:
        be_silent()


@pytest.mark.parametrize("hold", [records_held, slow_disk])
@pytest.mark.parametrize("has_ended", [True, False], ids=["its process ends", "its host vanishes"])
def test_a_takeover_waits_for_no_other_writer_and_its_holder_is_noted(
    tmp_path: Path, hold: Callable[[AdminServer], AbstractContextManager[None]], *, has_ended: bool
) -> None:
    with running_server(tmp_path, cluster_text=PATIENT) as server:
        broker, folder = server.brokers["equities"], server.folder.path
        active = Adapter(server, "a")
        epoch = active.await_order("lease_granted").lease_granted.epoch
        with renewing(active, epoch) as be_silent:
            backup = Adapter(server, "b")
            backup.report(ReplicaState.SYNCHRONIZED, 5)
            backup.await_order("report_heard")
            with hold(server):
                broker._state.skip_epochs(epoch + 40, broker._state.reserved_end)  # epochs are to be reserved now
                broker.announce()
                be_silent()
                if has_ended:
                    broker.end(active.registered.self.incarnation)
                granted = backup.await_order("lease_granted").lease_granted
                assert granted.epoch == epoch + 41
                assert read_notes(folder / NOTES).of(1).lease == (granted.epoch, backup.adapter_id)
                if hold is records_held:
                    assert broker._state.reserved_end == EPOCH_BLOCK, "epochs could not be reserved meanwhile"
        backup.vanish()
        active.vanish()
