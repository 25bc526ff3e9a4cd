"""An adapter's lag counts a source stream once, however many channels read it."""

from __future__ import annotations

from tandemfeed.adapter.reporting.reports import source_lag
from tandemfeed.feedcore.counters import CounterSet
from tandemfeed.feedcore.replica.config import ChannelConfig, EngineConfig
from tandemfeed.feedcore.replica.engine import AdapterEngine
from tests.simulation.toy_feed import FEED_ID, SESSION, ToyConverter, encode_source


def test_the_lag_of_a_stream_is_that_of_the_channel_that_is_furthest_behind() -> None:
    channels = (ChannelConfig(1, (1, 2)), ChannelConfig(2, (1,)))
    config = EngineConfig(FEED_ID, 1, SESSION, channels)
    engine = AdapterEngine(config, {1: ToyConverter(), 2: ToyConverter(1)}, CounterSet(), 0)
    engine.on_source_datagram(encode_source(1, 1, [(1, 11), (1, 13)], 0, 0), 0)
    engine.on_source_datagram(encode_source(2, 4, [(0, 17)], 0, 0), 0)
    assert source_lag(engine.replicas.values()) == 2 + 4  # joining: nothing is converted
    engine.replicas[2].line.next_source_seqs[1] = 3
    assert source_lag(engine.replicas.values()) == 2 + 4
    engine.replicas[1].line.next_source_seqs[1] = 2
    assert source_lag(engine.replicas.values()) == 1 + 4
