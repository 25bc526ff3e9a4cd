"""Options of the data sources: a misspelt one is refused, and the manual names exactly those that there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.offline.ticks import tick_source
from tandemfeed.spark_feed.spark.errors import TableError
from tandemfeed.spark_feed.spark.journals import journal_source
from tandemfeed.spark_feed.spark.live import live_source
from tandemfeed.spark_feed.spark.options import require_known
from tandemfeed.spark_feed.spark.sink import feed_sink
from tandemfeed.spark_feed.spark.source_journals import source_journal_source

MANUAL = (Path(__file__).resolve().parents[3] / "docs/spark.md").read_text()
SOURCES: list[tuple[str, Callable[[dict[str, str]], object]]] = [
    ("journal", lambda options: journal_source.JournalSource(options).schema()),
    ("source journal", lambda options: source_journal_source.SourceJournalSource(options).schema()),
    ("live", lambda options: live_source.LiveSource(options).schema()),
    ("ticks", lambda options: tick_source.TickSource(options).schema()),
    ("sink", lambda options: feed_sink.feed_writer(options, None)),
]


@pytest.mark.parametrize(("schema_of"), [each[1] for each in SOURCES], ids=[each[0] for each in SOURCES])
def test_a_misspelt_option_is_refused_by_every_source(schema_of: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(TableError, match=r"option 'mesage' is unknown; did you mean 'message'\?"):
        schema_of({"mesage": "TradeTick"})


def test_options_ignore_case_and_what_spark_adds_is_allowed() -> None:
    require_known({"MAXROWSPERTRIGGER": "1", "path": "/", "checkpointlocation": "/"}, live_source.OPTIONS)
    with pytest.raises(TableError, match="option 'zzz' is unknown; it must be one of model, message"):
        require_known({"zzz": ""}, journal_source.OPTIONS)


@pytest.mark.parametrize("module", [journal_source, live_source, tick_source, feed_sink])
def test_every_option_is_in_the_manual(module: Any) -> None:
    named = {name for row in re.findall(r"^\| (`.*?) \|", MANUAL, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert not set(module.OPTIONS) - named
