"""The shell of a process: logs, stop signal, metrics."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tandemfeed.feedcore.counters import Counter, CounterSet
from tandemfeed.feedcore.wire.refusal import Refusal
from tandemfeed.transport.metrics import CounterCollector, serve_metrics
from tandemfeed.transport.process_shell import JsonFormatter, StopSignal, alone_with


def test_a_log_line_is_one_json_object_with_its_fields() -> None:
    record = logging.LogRecord("x", logging.WARNING, "file", 1, "lease %s", ("lost",), None)
    record.epoch = 7
    line = json.loads(JsonFormatter("adapter-a").format(record))
    assert (line["level"], line["component"], line["event"], line["epoch"]) == ("warning", "adapter-a", "lease lost", 7)


def test_sigterm_sets_the_stop_signal_and_its_descriptor() -> None:
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop = StopSignal()
        assert not stop.wait(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
        assert select.select([stop.fileno()], [], [], 10)[0]
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def test_every_counter_is_exported_with_its_sentence() -> None:
    counters = CounterSet()
    counters.add(Counter.SOURCE_PACKETS, 3)
    counters.refuse(Refusal.FORGED)
    registry = CollectorRegistry()
    registry.register(CounterCollector(counters))
    text = generate_latest(registry).decode()
    assert "tandemfeed_source_packets_total 3.0" in text
    assert 'tandemfeed_refused_packets_total{reason="forged"} 1.0' in text
    for counter in Counter:
        assert f"# HELP tandemfeed_{counter.name.lower()}_total {counter.value}" in text


def test_a_metrics_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"--metrics-port {port} cannot be used: address already in use"):
            serve_metrics(port)


def test_a_file_is_locked_until_the_end_of_its_use(tmp_path: Path) -> None:
    with (
        alone_with(tmp_path / "lock", "taken"),
        pytest.raises(OSError, match="taken"),
        alone_with(tmp_path / "lock", "taken"),
    ):
        pass
    with alone_with(tmp_path / "lock", "taken"):
        pass
