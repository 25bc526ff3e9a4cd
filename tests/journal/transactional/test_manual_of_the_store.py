"""The examples in docs/transactional-store.md work as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tandemfeed.journal.transactional import StoreLimits, TransactionalStore
from tandemfeed.journal.transactional import errors as errors_module

MANUAL = (Path(__file__).resolve().parents[3] / "docs" / "transactional-store.md").read_text()


def test_the_first_example_in_the_manual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = re.findall(r"```python\n(.+?)```", MANUAL, re.DOTALL)[0]
    exec(compile(example, "manual", "exec"), {})
    with TransactionalStore.open(tmp_path / "orders") as store:
        assert {queue.name: queue.count for queue in store.queues()} == {
            "accepted": 1,
            "orders": 0,
            "subscriber:risk-desk": 0,
        }


def test_every_name_in_the_manual_exists() -> None:
    words = set(re.findall(r"`([A-Za-z_]+)`", MANUAL))
    limits = {word for word in words if re.search(r"_(max|bytes|s)$", word)}
    assert limits - {"wait_s"} <= set(StoreLimits.__slots__)
    errors = {word for word in words if re.match(r"(Store|Transaction|Queue|Foreign|Newer|Decided)[A-Z]\w+", word)}
    assert errors - {"StoreLimits"} <= set(vars(errors_module))
