"""Bars of trades and quotes: exact, the same from journals and streams, and written once."""

from __future__ import annotations

import grp
import os
import stat
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.spark_feed.bars import cli
from tandemfeed.spark_feed.bars.bars import BarOptions, quote_bars, trade_bars
from tandemfeed.spark_feed.bars.writing import start_bars
from tandemfeed.spark_feed.numbering.driver.session import Spark
from tests.spark_feed.source_material import ROOT
from tests.spark_feed.spark.output_material import (
    FIRST_EVENT_NS,
    MODEL_FILE,
    SYMBOLS,
    journal_of,
    plain_packets,
    price_of,
)

pytestmark = [pytest.mark.spark, pytest.mark.processes]
OWN_GROUP = grp.getgrgid(os.getgid()).gr_name
END_SEQ = 3_000
OPTIONS = BarOptions(width="1 second", late="100 milliseconds")
NANO = Decimal("1e-9")


def begin_of(seq: int) -> datetime:
    """The begin of the bar that has a message."""
    return datetime.fromtimestamp((FIRST_EVENT_NS + seq * 1_000_000) // 1_000_000_000, UTC)


def expected_trades() -> dict[tuple[datetime, str], tuple[Any, ...]]:
    """Bars of the journal's trades, computed by themselves."""
    prices = defaultdict(list)
    for seq in range(1, END_SEQ, 2):
        prices[begin_of(seq), SYMBOLS[seq % 3]].append(Decimal(price_of(seq)) * NANO)
    return {
        where: (each[0], max(each), min(each), each[-1], 4_000_000_000 * len(each), len(each))
        for where, each in prices.items()
    }


def found_trades(rows: list[Any]) -> dict[tuple[datetime, str], tuple[Any, ...]]:
    assert all(row.vwap == (row.turnover / row.volume).quantize(NANO, ROUND_HALF_UP) for row in rows)
    shown = ("open", "high", "low", "close", "volume", "trade_count")
    return {(row.begin_at.astimezone(UTC), row.symbol): tuple(row[name] for name in shown) for row in rows}


def table(spark: Spark, journal: Path, message: str) -> Any:
    return spark.read.format("tandemfeed.journal").options(model=str(MODEL_FILE), message=message).load(str(journal))


def test_bars_of_a_journal_are_those_computed_from_its_messages(spark: Spark, tmp_path: Path) -> None:
    journal = journal_of(tmp_path / "journal", plain_packets(END_SEQ))
    options = ["--model", str(MODEL_FILE), "--width", "1 second", "--out", str(tmp_path / "bars")]
    assert cli.main(["--journal", str(journal), *options]) == 0
    assert stat.S_IMODE((tmp_path / "bars").stat().st_mode) == 0o700
    bars = spark.read.parquet(str(tmp_path / "bars" / "trades"))
    assert found_trades(bars.collect()) == expected_trades()
    quotes = spark.read.parquet(str(tmp_path / "bars" / "quotes")).collect()
    assert sum(row.quote_count for row in quotes) == len(range(2, END_SEQ, 2))
    spreads = defaultdict(list)
    for seq in range(2, END_SEQ, 2):  # asks are 0
        spreads[begin_of(seq), SYMBOLS[seq % 3]].append(-Decimal(price_of(seq)) * NANO)
    for row in quotes:
        mine = spreads[row.begin_at.astimezone(UTC), row.symbol]
        assert (row.spread_min, row.spread_max) == (min(mine), max(mine))
        assert row.spread_mean == (sum(mine) / len(mine)).quantize(NANO, ROUND_HALF_UP)
        assert row.crossed_count == sum(spread < 0 for spread in mine)
        assert row.middle_close == (-mine[-1] / 2).quantize(NANO)
    assert cli.main(["--journal", str(journal), *options]) == 2  # the folder has bars


@pytest.mark.long
@pytest.mark.parametrize(
    ("group", "modes"), [(None, {"drwx------", "-rw-------"}), (OWN_GROUP, {"drwxrws---", "-rw-rw----"})]
)
def test_bars_are_private_unless_a_group_is_named(tmp_path: Path, group: str | None, modes: set[str]) -> None:
    journal = journal_of(tmp_path / "journal", plain_packets(100))
    code = "import sys; from tandemfeed.spark_feed.bars.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "--journal", str(journal), "--model", str(MODEL_FILE)]
    command += ["--out", str(tmp_path / "bars"), *([] if group is None else ["--group", group])]
    subprocess.run(command, cwd=ROOT, timeout=240, check=True)
    stored = [tmp_path / "bars", *(tmp_path / "bars").rglob("*")]
    assert {stat.filemode(each.stat().st_mode) for each in stored} == modes
    assert {each.stat().st_gid for each in stored} == {os.getgid()}


def test_bars_of_a_stream_are_those_of_the_journal_and_written_once(spark: Spark, tmp_path: Path) -> None:
    journal = journal_of(tmp_path / "journal", plain_packets(END_SEQ))
    trades = table(spark, journal, "TradeTick").orderBy("message_seq")
    stream = tmp_path / "stream"
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")  # Spark's default
    for begin in range(0, END_SEQ, 1_000):
        part = trades.where(f"message_seq between {begin} and {begin + 999}").coalesce(1)
        part.write.mode("append").parquet(str(stream))
        live = spark.readStream.schema(trades.schema).option("maxFilesPerTrigger", 1).parquet(str(stream))
        bars = trade_bars(live, OPTIONS)
        query = start_bars(bars, tmp_path / "bars", tmp_path / "checkpoint", until_idle=True)  # restarted each time
        query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "bars")).collect()
    written = found_trades(rows)
    assert len(written) == len(rows)  # each bar once
    newest = begin_of(END_SEQ - 1)
    complete = {where: bar for where, bar in expected_trades().items() if where[0] < newest}
    assert written == complete  # the newest bar may still get trades


def test_columns_of_another_model_are_named(spark: Spark, tmp_path: Path) -> None:
    journal = journal_of(tmp_path / "journal", plain_packets(100))
    quotes = table(spark, journal, "QuoteTick").withColumnsRenamed({"bidPrice": "bid", "askPrice": "ask"})
    bars = quote_bars(quotes, BarOptions(columns={"bidPrice": "bid", "askPrice": "ask"}))
    assert sum(row.quote_count for row in bars.collect()) == 49
