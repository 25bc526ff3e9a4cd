"""The records and the audit log on a real disk that refuses writes for a while, and then loses its power."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.admin_server.audit.files import audit_files
from tandemfeed.admin_server.audit.verification import verify
from tandemfeed.admin_server.records.notes import NOTES, read_notes
from tandemfeed.admin_server.records.store import Store
from tests.failing_device import FailingDevice

# Makes each change that it is asked for, and says whether it was acknowledged, until it is killed.
WRITER = """
import sys
from pathlib import Path
from tandemfeed.admin_server.audit.log import AuditLog
from tandemfeed.admin_server.records import notes
from tandemfeed.admin_server.records.lease_records import RecordsUnavailable
from tandemfeed.admin_server.records.store import Store

notes.FLUSH_INTERVAL_S = 0.01
folder = Path(sys.argv[1])
store, audit = Store(folder / "leases.sqlite"), AuditLog(folder)
audit.use_records(store)
print("ready", flush=True)
for line in sys.stdin:
    kind, number = line.split()
    try:
        match kind:
            case "record":
                store.note_document("identities", number, number.encode() * 600)
            case "lease":
                store.note_lease(1, int(number), 1)
            case "entry":
                audit.write("subscribed", place=int(number), why="x" * 3_000)
            case "flushed":
                store._notes._must_replace or notes.flush(store._notes._descriptor, store._notes._path)
    except (OSError, RecordsUnavailable) as refused:
        print("refused", flush=True)
    else:
        print("ok", flush=True)
"""


class Writer:
    """A process with the records of a folder."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, kind: str, number: int) -> bool:
        """Ask for a change. True if it was acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {number}\n")
        self._process.stdin.flush()
        answer = self._line()
        assert answer in ("ok", "refused")
        return answer == "ok"

    def kill(self) -> None:
        """End it, as kill -9 does."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FailingDevice]:
    with FailingDevice(tmp_path, is_thin=True) as made:
        yield made


@pytest.mark.parametrize("restarts", [False, True], ids=["it continues", "it is killed and started again"])
def test_what_was_acknowledged_before_and_after_the_disk_refused_writes_is_there_after_a_power_failure(
    device: FailingDevice, *, restarts: bool
) -> None:
    folder = device.folder / "state"
    folder.mkdir()
    writer = Writer(folder)
    acknowledged: dict[str, list[int]] = {"record": [], "entry": []}
    refused = 0

    def ask_for(numbers: range) -> None:
        nonlocal refused
        for number in numbers:
            for kind, taken in acknowledged.items():
                if writer.ask(kind, number):
                    taken.append(number)
                else:
                    refused += 1
            writer.ask("lease", number)

    ask_for(range(20))
    with device.failing():
        ask_for(range(20, 40))
    device.drop_caches()
    if restarts:
        writer.kill()
        writer = Writer(folder)
    assert refused > 0, "the disk refused nothing, so nothing was tested"
    before = {kind: len(taken) for kind, taken in acknowledged.items()}
    ask_for(range(40, 60))
    assert all(len(taken) == before[kind] + 20 for kind, taken in acknowledged.items()), "it works again"
    while not writer.ask("flushed", 0):
        pass  # the notes are written again in the background
    writer.kill()
    device.lose_power()
    check(folder, acknowledged)


def check(folder: Path, acknowledged: dict[str, list[int]]) -> None:
    """Compare what was acknowledged with what is on the disk."""
    assert read_notes(folder / NOTES).of(1).lease == (59, 1)
    entries = [json.loads(line) for path in audit_files(folder) for line in path.read_bytes().splitlines()]
    assert [each["place"] for each in entries if each["event"] == "subscribed"] == acknowledged["entry"]
    assert verify(folder).problems == []
    store = Store(folder / "leases.sqlite")
    kept = store.documents("identities")
    store.close()
    for number in acknowledged["record"]:
        assert kept[str(number)] == str(number).encode() * 600
