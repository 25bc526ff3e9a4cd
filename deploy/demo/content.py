"""Compares what a client received with the recording, message by message, in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tandemfeed.spark_feed.numbering.rows.column_split import parse_split, streams_of_rows
from tandemfeed.spark_feed.numbering.rows.columns import RecordedRows

CHECKED = ("symbol", "event_at", "value")


def expected_content(recording: Path, split: str, stream_count: int) -> dict[int, NDArray[np.void]]:
    """The expected fields of the messages of each source stream, in `source_seq` order.

    Args:
        recording: folder of Parquet files.
        split: the rule that the source job used.
    """
    columns = ["record_index", "kind", "symbol", "event_at_ns", "price", "bid_price"]
    table = pq.read_table(recording, columns=columns).sort_by("record_index").combine_chunks()
    symbols = table["symbol"].combine_chunks().dictionary_encode()
    names = [name.encode() for name in symbols.dictionary.to_pylist()]
    codes = symbols.indices.to_numpy().astype(np.int64)
    price = table["price"].fill_null(0).to_numpy()
    bid = table["bid_price"].fill_null(0).to_numpy()
    is_quote = np.asarray(table["kind"].to_numpy(zero_copy_only=False) == "quote")
    rows = np.empty(table.num_rows, np.dtype([("symbol", "S8"), ("event_at", "<u8"), ("value", "<i8")]))
    rows["symbol"] = np.array(names, "S8")[codes]
    rows["event_at"] = table["event_at_ns"].to_numpy()
    rows["value"] = np.where(is_quote, bid, price)
    rule = parse_split(split, range(1, stream_count + 1))
    places = streams_of_rows(rule, RecordedRows(table), table["record_index"].to_numpy(), stream_count)
    return {place + 1: rows[places == place] for place in range(stream_count)}


def count_wrong(delivered: NDArray[np.void], expected: dict[int, NDArray[np.void]]) -> int:
    """How many delivered messages differ from the recording in symbol, event time or price."""
    wrong = 0
    for stream, rows in expected.items():
        received = delivered[delivered["stream"] == stream]
        seqs = received["source_seq"].astype(np.int64)
        known = (seqs >= 1) & (seqs <= len(rows))
        wrong += int((~known).sum())
        recorded = rows[seqs[known] - 1]
        differs = np.zeros(int(known.sum()), bool)
        for name in CHECKED:
            differs |= received[name][known] != recorded[name]
        wrong += int(differs.sum())
    return wrong
