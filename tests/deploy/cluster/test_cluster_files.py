"""The files of a cluster on one machine: for its user only, and there after a power failure."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemfeed.deploy.cluster.cluster import Cluster
from tandemfeed.deploy.cluster.processes import ManagedProcess
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.runtime.durable import make_folder
from tests.losing_disk import losing_disk


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    former = os.umask(0o022)
    yield
    os.umask(former)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of a folder and everything in it."""
    return {str(each.relative_to(folder)): stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.rglob("*"))}


def test_settings_and_logs_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with Cluster(folder):
        process = ManagedProcess("talking", ["no-such-command"], folder / "logs")
        process.wait(60)
        assert "unknown command" in str(process.failed("ended"))
    found = modes(folder)
    assert {found["."], found["logs"]} == {0o700}
    assert {found["cluster.toml"], found["policy.toml"], found["logs/talking.log"]} == {0o600}


def test_settings_and_the_journal_of_a_day_are_there_after_a_power_failure(tmp_path: Path) -> None:
    with losing_disk(tmp_path, tmp_path.parent / f"{tmp_path.name}-kept") as disk:
        folder = tmp_path / "cluster"
        with Cluster(folder, Shape(), has_days=True) as cluster:
            (feed,) = cluster.feeds
            for day in (0, 1):
                make_folder(cluster.journal(feed, day))
            cluster.begin_day(feed)
        image = disk.image(tmp_path.parent / f"{tmp_path.name}-image") / "cluster"
    assert sorted(each.name for each in (image / "source-journals").iterdir()) == ["day-1", "day-2"]
    assert not list((image / "coming-source-journals").iterdir())
    assert (image / "cluster.toml").read_text() == (folder / "cluster.toml").read_text()
