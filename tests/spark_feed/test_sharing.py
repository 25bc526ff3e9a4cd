"""Who may read what the feed source stores, whatever the umask: its user, and a group if it is shared."""

from __future__ import annotations

import grp
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tandemfeed.journal import ReadOnly
from tandemfeed.journal.format.access import PRIVATE
from tandemfeed.journal.replication import new_keys
from tandemfeed.spark_feed.contributions import cli as contributions_cli
from tandemfeed.spark_feed.contributions.pair.log_copy import KeyPair, Leader, LogCopy
from tandemfeed.spark_feed.journaling.journal_writer import SourceJournalWriter
from tandemfeed.spark_feed.journaling.pending_batch import store_pending
from tandemfeed.spark_feed.numbering.driver.job import numbering_plan
from tandemfeed.spark_feed.numbering.rows.column_split import BY_LETTER
from tandemfeed.spark_feed.numbering.tasks.quarantine import Quarantine
from tandemfeed.spark_feed.recordings.generator import GeneratorOptions, TickGenerator
from tandemfeed.spark_feed.recordings.recording import write_recording
from tandemfeed.spark_feed.sharing import access_in, make
from tests.losing_disk import FailsAt, losing_disk
from tests.spark_feed.contributions.test_contributed_stream import Site
from tests.spark_feed.sending.gateway_material import REAL_TIME, ManualClock, running_gateway
from tests.spark_feed.source_material import FEED, MESSAGES_MAX, ROOT, SOURCE_FORMAT, batches_of, make_recording

OWN_GROUP = grp.getgrgid(os.getgid()).gr_name


@pytest.fixture(autouse=True, params=[0o022, 0o077])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    former = os.umask(request.param)
    yield
    os.umask(former)


def modes_below(folder: Path) -> dict[str, str]:
    """The mode of each file and folder, as text."""
    found = [folder, *folder.rglob("*")]
    return {
        str(each.relative_to(folder)): stat.filemode(each.lstat().st_mode) for each in found if not each.is_socket()
    }


def write_everything(folder: Path, group: str | None) -> None:
    """What source jobs, gateways and contributors' gateways store."""
    tables = TickGenerator(GeneratorOptions(300, 60, 5)).tables()
    recording = folder / "recording"
    write_recording(recording, tables, rows_per_file=100, origin="", price_conversion="", group=group)
    plan = numbering_plan(recording, SOURCE_FORMAT, FEED, BY_LETTER, MESSAGES_MAX)
    with SourceJournalWriter(folder / "journal", plan, group=group) as writer:
        for batch_id, parts in enumerate(batches_of(recording)):
            writer.append_batch(batch_id, parts)
            store_pending(folder / "journal", batch_id, parts)
    quarantine = Quarantine("a file", 0)
    quarantine._rows.append({"file": "a", "row": 1, "record_index": 1, "reason": "bad", "record": "{}"})
    quarantine.write(folder / "journal" / "quarantine" / "a.parquet")
    (folder / "keys").mkdir(exist_ok=True)
    with running_gateway(folder / "keys", REAL_TIME, ManualClock(), journal=folder / "journal", group=group) as gateway:
        gateway._turn()
        assert gateway._present is not None
        gateway._present.store_position()
    shutil.rmtree(folder / "keys")
    make(folder / "contributions", group)
    with closing(Site(folder / "contributions")) as site:
        site.turn()


def test_by_default_nothing_is_readable_by_others(tmp_path: Path) -> None:
    write_everything(make_private(tmp_path), None)
    found = modes_below(tmp_path / "site")
    assert {name for name in found if "gateway" in name or "published" in name} == {
        "journal/gateway.position", "journal/published.log"
    }  # fmt: skip
    assert {mode[4:] for mode in found.values()} == {"------"}


def make_private(folder: Path) -> Path:
    make(folder / "site")
    return folder / "site"


def test_with_a_group_its_members_may_read_and_write_and_others_nothing(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    write_everything(tmp_path / "site", OWN_GROUP)
    found = modes_below(tmp_path / "site")
    folders = {mode for name, mode in found.items() if mode[0] == "d" and name not in (".",)}
    assert folders == {"drwxrws---"}
    files = {name: mode for name, mode in found.items() if mode[0] == "-"}
    assert {mode[4] for mode in files.values()} == {"r"}
    assert {mode[7:] for mode in files.values()} == {"---"}
    writable = {name for name, mode in files.items() if mode[5] == "w"}
    assert {"journal/gateway.position", "journal/published.log"} <= writable, "a job and its gateway may differ"
    assert all(name in writable for name in files if name.endswith((".tfj", ".tfc")))


def test_what_is_created_in_a_shared_folder_is_shared_and_elsewhere_it_is_private(tmp_path: Path) -> None:
    shared = make(tmp_path / "shared", OWN_GROUP)
    assert (shared.file_mode, shared.folder_mode, shared.group_id) == (0o660, 0o2770, os.getgid())
    assert make(tmp_path / "shared" / "a" / "b") == shared
    assert stat.S_IMODE((tmp_path / "shared" / "a").stat().st_mode) == 0o2770
    assert make(tmp_path / "private" / "a") == PRIVATE
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    (tmp_path / "usual").mkdir(mode=0o755)
    assert access_in(tmp_path / "usual") == PRIVATE
    assert make(tmp_path / "private", OWN_GROUP) == shared, "an existing folder, when its owner asks for it"


def test_a_standbys_copy_is_shared_like_the_folder_in_which_it_is(tmp_path: Path) -> None:
    make(tmp_path / "shared", OWN_GROUP)
    copy = LogCopy(tmp_path / "shared", KeyPair(*new_keys()), lambda: None)
    copy.follow(Leader("tcp://127.0.0.1:1", new_keys()[0].decode()))
    follower = copy._follower
    copy.stop()
    assert follower is not None
    assert follower._journal._access.folder_mode == 0o2770  # type: ignore[attr-defined]


@pytest.mark.skipif(os.getuid() == 0, reason="root may give files to any group")
def test_a_folder_that_cannot_be_given_to_the_group_is_refused(tmp_path: Path) -> None:
    others = next(each.gr_name for each in grp.getgrall() if each.gr_gid not in os.getgroups())
    with pytest.raises(ReadOnly, match="must own the file and be in the group"):
        make(tmp_path / "shared", others)


@pytest.mark.parametrize("group", [None, OWN_GROUP])
def test_the_command_that_makes_recordings_shares_them_on_request(tmp_path: Path, group: str | None) -> None:
    arguments = ["generate", "--out", str(tmp_path / "recording"), "--messages", "300", "--rows-per-file", "100"]
    code = "import sys; from tandemfeed.spark_feed.recordings.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments, *([] if group is None else ["--group", group])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["record_count"] == 300
    found = modes_below(tmp_path / "recording")
    expected = {"drwx------", "-rw-------"} if group is None else {"drwxrws---", "-rw-rw----"}
    assert set(found.values()) == expected


def test_a_group_that_this_host_does_not_know_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        contributions_cli.main(["--group", "no such group"])
    assert "must be the name or id of a group of this host" in capsys.readouterr().err


def test_a_recording_is_on_the_disk_when_it_is_reported_or_is_not_there(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with losing_disk(work, tmp_path / "kept") as disk:
        manifest = make_recording(work / "recording", 300, 100)
        image = disk.image(tmp_path / "image") / "recording"
        assert {each.name: each.read_bytes() for each in image.iterdir()} == {
            each.name: each.read_bytes() for each in (work / "recording").iterdir()
        }
        assert manifest.file_count == 3
        failed_count = 0
        for first in range(1, 20):
            disk.fault = fault = FailsAt(first, operations=("flush", "flush_folder"))
            folder = work / f"other-{first}"
            try:
                make_recording(folder, 300, 100)
            except OSError:
                assert not folder.exists() or not any(folder.iterdir())
            failed_count += fault.failed
        assert failed_count > 5
