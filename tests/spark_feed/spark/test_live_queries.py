"""`spark.readStream.format("tandemfeed")` on a real cluster: exactly once over failures, takeovers and restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.spark_feed.numbering.driver.session import Spark
from tests.adapter.processes.adapter_processes import SourceByHand
from tests.adapter.processes.clusters import Cluster, Feed, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(900)]
PATIENCE_S = 120.0
FAILING_BATCH = 2
Identity = tuple[int, int]


class Sink:
    """What each micro-batch had, as (source_stream_id, source_seq); a batch that runs again replaces its rows."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Identity]] = {}
        self.is_failing = True

    def take(self, batch: Any, batch_id: int) -> None:
        """Take a micro-batch; the first run of one of them fails afterwards."""
        rows = batch.select("source_stream_id", "source_seq", "symbol", "price").collect()
        assert all(row.price * 10**9 == row.source_seq * 1_000 for row in rows)
        assert all(row.symbol == f"AB{row.source_seq % 7}" for row in rows)
        self.batches[batch_id] = [(row.source_stream_id, row.source_seq) for row in rows]
        if batch_id == FAILING_BATCH and self.is_failing:
            raise RuntimeError("the sink failed")

    @property
    def taken(self) -> list[Identity]:
        """Everything, in the order of the batches."""
        return [each for _, batch in sorted(self.batches.items()) for each in batch]


def start_query(spark: Spark, cluster: Cluster, sink: Sink, checkpoint: Path, **trigger: bool) -> Any:
    state = cluster.server.folder.path
    trades = spark.readStream.format("tandemfeed").options(
        admin=cluster.server.endpoint, ca=str(state / "ca.pem"), identity="reader", feed="equities",
        secretFile=str(state / "secrets" / "reader.secret"), message="TradeTick", startingOffsets="earliest",
        maxRowsPerTrigger="150",
    ).load()  # fmt: skip
    stream = trades.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(checkpoint))
    return (stream.trigger(**trigger) if trigger else stream.trigger(processingTime="0 seconds")).start()


def wait_for(is_there: Callable[[], bool], query: Any, story: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_there():
        assert time.monotonic() < end_s, story()
        assert query.exception() is None or is_there(), query.exception()
        time.sleep(0.05)


def send(source: SourceByHand, packets: int) -> None:
    for _ in range(packets):
        source.send(1, 20)
        source.send(2, 10)


def test_a_query_has_each_message_once_over_a_failed_batch_takeovers_and_restarts(spark: Spark, tmp_path: Path) -> None:
    sink = Sink()
    with running_cluster(tmp_path, Feed("ab")) as cluster:
        cluster.start_adapters("ab")
        source = cluster.source
        active = cluster.await_active("equities", synchronized_count=1).active.adapter_id
        send(source, 20)
        query = start_query(spark, cluster, sink, tmp_path / "checkpoint")
        with pytest.raises(Exception, match="the sink failed"):
            query.awaitTermination(PATIENCE_S)
        first_run = sink.batches[FAILING_BATCH]
        assert all(len(batch) <= 150 for batch in sink.batches.values())
        cluster.kill("ab"[active - 1])
        send(source, 20)
        cluster.await_active("equities", other_than=active)
        sink.is_failing = False
        query = start_query(spark, cluster, sink, tmp_path / "checkpoint")
        wait_for(lambda: len(sink.taken) >= 1_200, query, lambda: len(sink.taken))
        assert sorted(sink.batches[FAILING_BATCH]) == sorted(first_run)
        cluster.start_adapters("ab"[active - 1])
        active = cluster.await_active("equities", synchronized_count=1).active.adapter_id
        send(source, 10)
        cluster.kill("ab"[active - 1])  # while the query runs
        send(source, 10)
        wait_for(lambda: len(sink.taken) >= 1_800, query, lambda: len(sink.taken))
        query.stop()
        send(source, 10)  # while no query runs
        query = start_query(spark, cluster, sink, tmp_path / "checkpoint")
        wait_for(lambda: len(sink.taken) >= 2_100, query, lambda: len(sink.taken))
        query.stop()
        send(source, 10)
        query = start_query(spark, cluster, sink, tmp_path / "checkpoint", availableNow=True)
        assert query.awaitTermination(PATIENCE_S)  # where the stream was, although it continues
        assert len(sink.taken) == 2_400
        for stream, end in source.next_seq.items():
            assert sorted(seq for each, seq in sink.taken if each == stream) == list(range(1, end))
