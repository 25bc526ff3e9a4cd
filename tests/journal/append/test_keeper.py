"""The keeper of an appender: what it does when the appender closes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.journal import Journal, Retention, Upkeep
from tandemfeed.journal.append import keeper as keeper_module
from tandemfeed.journal.append.keeper import Keeper
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.block import Block, make_spare
from tandemfeed.journal.format.layout import BLOCK_SIZE_MIN
from tandemfeed.runtime import threads

BLOCK, SMALL = 1 << 20, BLOCK_SIZE_MIN
PATIENCE_S = 60.0


def test_closing_stops_the_making_of_a_block_that_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, is_begun, made = Keeper(tmp_path, Upkeep()), threading.Event(), list[Path]()

    def make_slowly(
        path: Path, size: int, *, access: Access, mapped_ahead: int | None, pause: Callable[[], object]
    ) -> Block:
        def pause_until_closing() -> None:
            is_begun.set()
            assert keeper._is_awaited.wait(PATIENCE_S)
            pause()

        spare = make_spare(path, size, access=access, mapped_ahead=mapped_ahead, pause=pause_until_closing)
        made.append(path)
        return spare

    monkeypatch.setattr(keeper_module, "make_spare", make_slowly)
    keeper.prepare(BLOCK)
    assert is_begun.wait(PATIENCE_S)
    keeper.close()
    assert (made, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_closed_keeper_leaves_no_spare(is_finished: bool, tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, Upkeep())
    keeper.prepare(BLOCK)
    if is_finished:
        keeper.start()  # runs on the same thread, so after the making
    keeper.close()
    assert list(tmp_path.iterdir()) == []


def test_a_spare_whose_making_is_stopped_leaves_no_file(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_spare(tmp_path / ".a.spare", BLOCK, pause=stop)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_failed", {})


@pytest.mark.usefixtures("no_failures")
def test_work_that_fails_on_the_keepers_thread_shows_in_the_health_and_appends_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_keeper: Keeper) -> None:
        raise ZeroDivisionError("on the keeper's thread")

    monkeypatch.setattr(Keeper, "_tidy", fail)
    with Journal.open(tmp_path, block_size=SMALL, upkeep=Upkeep(Retention(files=2))) as journal:
        indices = [journal.append(bytes(60_000)) for _ in range(20)]
        assert len(list(journal.records())) == len(indices)
    assert isinstance(threads.failed_threads()["journal-keeper"], ZeroDivisionError)


@pytest.mark.usefixtures("no_failures")
def test_a_block_that_cannot_be_made_ahead_is_made_by_the_roll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_elsewhere(path: Path, size: int, **options: Any) -> Block:
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("ahead of time")
        return make_spare(path, size, **options)

    monkeypatch.setattr(keeper_module, "make_spare", fail_elsewhere)
    with Journal.open(tmp_path, block_size=SMALL) as journal:
        indices = [journal.append(bytes(60_000)) for _ in range(20)]
        assert [index for index, _ in journal.records()] == indices


@pytest.mark.usefixtures("no_failures")
def test_without_a_thread_no_append_that_was_made_raises(tmp_path: Path) -> None:
    """As when the process has too many threads, or ends: the record is there, so the append must not say it failed."""
    with Journal.open(tmp_path, block_size=SMALL, upkeep=Upkeep(Retention(files=4), mapped_ahead=8_192)) as journal:
        journal._keeper._pool.shutdown()
        indices = [journal.append(bytes(60_000)) for _ in range(20)]
        assert [index for index, _ in journal.records()] == indices


@pytest.mark.usefixtures("no_failures")
def test_a_listener_that_fails_does_not_fail_the_append(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def listen(path: Path) -> None:
        raise ZeroDivisionError(path.name)

    upkeep = Upkeep(Retention(files=2), on_file_added=listen, on_file_released=listen)
    with Journal.open(tmp_path, block_size=SMALL, upkeep=upkeep) as journal:
        indices = [journal.append(bytes(60_000)) for _ in range(20)]
        assert [index for index, _ in journal.records()][-1] == indices[-1]
    assert "a listener failed; the journal continues" in caplog.text
    assert len(list(tmp_path.glob("*.tfj"))) == 2
