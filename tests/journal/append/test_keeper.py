"""The keeper of an appender: what it does when the appender closes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemfeed.journal import Upkeep
from tandemfeed.journal.append import keeper as keeper_module
from tandemfeed.journal.append.keeper import Keeper
from tandemfeed.journal.format.access import Access
from tandemfeed.journal.format.block import Block, make_spare

BLOCK = 1 << 20
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
