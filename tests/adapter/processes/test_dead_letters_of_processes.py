"""Bad source messages among good ones, at real adapters: what is delivered, stored, counted and shown."""

from __future__ import annotations

import socket
import struct
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.convert_command.cli import main as convert_command
from tandemfeed.adapter.records.dead_letter_record import DeadLetterRecord, decode_dead_letter
from tandemfeed.admin_server.command.admin_command import main as admin
from tandemfeed.client_lib import Batch, Subscription
from tandemfeed.deploy.cluster.ports import free_ports
from tandemfeed.feedcore.wire.source_packet import SOURCE_FRAME
from tandemfeed.journal import Tailer
from tests.adapter.processes.adapter_processes import AdapterUnderTest, SourceByHand
from tests.adapter.processes.clusters import Cluster, Feed, running_cluster
from tests.admin_server.cluster_files import EXAMPLES

pytestmark = pytest.mark.processes
PACKETS = 40
TRIES = 400
# A long lease, because an adapter that loses it and rejoins would not convert, and count, the earlier messages.
FEED = Feed(options="lease_ttl_ms = 20000\nsync_interval_ms = 200")
# The example's table with two changes: one field goes through a map, and one is cast from a wider field.
CHANGES = {
    '<convert message="trade"': '<map name="sizes"><entry from="0" to="7"/></map>\n  <convert message="trade"',
    'name="size" function="copy" of="size"': 'name="size" function="map" of="flags" map="sizes"',
    'name="flags" function="copy" of="flags"': 'name="flags" function="cast" of="pad" type="uint8"',
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("COLUMNS", "200")
    with running_cluster(tmp_path, FEED) as running:
        yield running


@pytest.fixture
def table(tmp_path: Path) -> Path:
    text = (EXAMPLES / "converter-table.xml").read_text()
    for was, becomes in CHANGES.items():
        assert was in text
        text = text.replace(was, becomes, 1)
    path = tmp_path / "table.xml"
    path.write_text(text)
    return path


def trade(flags: int, pad: int) -> bytes:
    return SOURCE_FRAME.pack(36, 1) + b"BAD\0\0\0\0\0" + struct.pack("<QqIcBH", 5, 1_000, 3, b"B", flags, pad)


BAD = {
    Reason.UNKNOWN_TYPE: SOURCE_FRAME.pack(10, 77) + b"\x1b[31m!",  # must be escaped for a terminal
    Reason.WRONG_LENGTH: SOURCE_FRAME.pack(12, 2) + b"ACME\0\0\0\0",
    Reason.OUT_OF_RANGE: trade(0, 256),
    Reason.UNMAPPED: trade(5, 0),
}


def good_and_bad(source: SourceByHand, random: Random) -> tuple[list[int], list[tuple[int, Reason]]]:
    """Send a packet of good and bad messages; return the prices of the good ones, and number and reason of the bad."""
    first = source.next_seq[1]
    frames, prices, bad = source.trades(1, 8), [], []
    for place in range(8):
        if random.random() < 0.3:
            reason = random.choice(list(BAD))
            frames[place] = BAD[reason]
            bad.append((first + place, reason))
        else:
            prices.append((first + place) * 1_000)
    source.send_frames(1, frames)
    return prices, bad


def prices_of(subscription: Subscription, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        items = subscription.poll(20)
        assert items, f"only {len(found)} of {count}"
        for item in items:
            if isinstance(item, Batch):
                found += [price for _, rows in item.arrays() for price in rows["price"].tolist()]
    return found


def kept(folder: Path) -> list[DeadLetterRecord]:
    with Tailer(folder) as tailer:
        return [decode_dead_letter(record) for _, record in tailer]


def metrics_at(port: int) -> tuple[dict[str, float], str]:
    """The samples by name, and the whole page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        page = answer.read().decode()
    lines = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}, page


def await_metric(port: int, name: str, value: float) -> None:
    """Wait until an adapter's metric has this value."""
    for _ in range(TRIES):
        metrics, _ = metrics_at(port)
        if metrics[name] == value:
            return
        time.sleep(0.05)
    raise AssertionError(f"{name} is {metrics[name]}, expected {value}")


def assert_shown(cluster: Cluster, port: int, bad: list[tuple[int, Reason]]) -> None:
    metrics, page = metrics_at(port)
    counts = Counter(reason for _, reason in bad)
    for reason in BAD:
        name = f'tandemfeed_source_messages_refused_total{{channel="1",reason="{reason.name.lower()}"}}'
        assert metrics[name] == counts[reason] > 0, cluster.story()
        assert reason.text in page
    assert metrics['tandemfeed_source_messages_refused_total{channel="1",reason="too_large"}'] == 0
    assert metrics['tandemfeed_source_messages_not_converted_total{channel="1"}'] == 0
    assert metrics["tandemfeed_dead_letters_dropped_total"] == 0


def admin_status(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> str:
    state = cluster.folder / "state"
    options = ["--admin", cluster.server.endpoint, "--ca", str(state / "ca.pem"), "--identity", "operator"]
    assert admin(["status", *options, "--secret-file", str(state / "secrets" / "operator.secret")]) == 0
    return capsys.readouterr().out


def start(cluster: Cluster, name: str, *extra: str) -> int:
    """Start an adapter; return its metrics port."""
    (port,) = free_ports(socket.SOCK_STREAM, 1)
    cluster.adapters[name] = AdapterUnderTest(cluster.server, name, cluster.folder, metrics_port=port, extra=extra)
    return port


def test_bad_messages_are_stored_with_their_reasons_and_good_ones_are_delivered(
    cluster: Cluster, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random, prices, bad = Random(11), [], []
    ports = [start(cluster, name, "--table", str(table)) for name in "ab"]
    cluster.adapters["a"].await_state("active")
    cluster.adapters["b"].await_state("synchronized")
    with cluster.subscription() as subscription:
        for _ in range(PACKETS):
            good, refused = good_and_bad(cluster.source, random)
            prices += good
            bad += refused
        assert prices_of(subscription, len(prices)) == prices
    for port in ports:
        await_metric(port, 'tandemfeed_next_message_seq{channel="1"}', len(prices) + 1)
        await_metric(port, "tandemfeed_dead_letters_journaled_total", len(bad))
        assert_shown(cluster, port, bad)
    tries = 0  # reports are sent at every sync interval
    while admin_status(cluster, capsys).count("source messages refused: out_of_range") < 2:  # active and backup
        tries += 1
        assert tries < TRIES
    assert [cluster.adapters[name].stop() for name in "ab"] == [0, 0]
    for name in "ab":
        letters = kept(cluster.folder / f"journal-{name}-dead-letters")
        assert [(each.source_seq, each.reason) for each in letters] == [(seq, why.name.lower()) for seq, why in bad]
        assert [each.frame for each in letters] == [BAD[reason] for _, reason in bad]
        assert {(each.feed_id, each.channel_id, each.source_stream_id, each.sent_at_ns) for each in letters} == {
            (1, 1, 1, 1)
        }
    assert_printed(cluster.folder / "journal-a-dead-letters", bad, capsys)


def assert_printed(folder: Path, bad: list[tuple[int, Reason]], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert convert_command(["dead-letters", str(folder), "--source-format", str(EXAMPLES / "source-format.xml")]) == 0
    told = capsys.readouterr()
    for seq, reason in bad:
        assert f"{reason.name.lower()}: stream 1, source_seq {seq}: " in told.out
    assert "quote (type 2), 12 bytes" in told.out
    assert "symbol=BAD, event_at_ns=5, price=1000" in told.out
    assert "unknown message (type 77 'M'), 10 bytes" in told.out
    assert "0a 00 4d 00 1b 5b 33 31 6d 21" in told.out
    assert "\x1b" not in told.out
    assert f"{len(bad)} dead letters" in told.err


def test_an_adapter_serves_although_its_dead_letter_journal_cannot_be_written(cluster: Cluster) -> None:
    (cluster.folder / "blocked").write_text("a file in place of the folder")
    port = start(cluster, "a", "--dead-letters", str(cluster.folder / "blocked" / "dead"))
    adapter, source = cluster.adapters["a"], cluster.source
    adapter.await_state("active")
    adapter.await_log("cannot store dead letters; the stream continues")
    with cluster.subscription() as subscription:
        source.send_frames(1, [*source.trades(1, 2), BAD[Reason.UNKNOWN_TYPE], BAD[Reason.WRONG_LENGTH]])
        source.send(1, 3)
        assert prices_of(subscription, 5) == [1_000, 2_000, 5_000, 6_000, 7_000]
    await_metric(port, "tandemfeed_dead_letters_dropped_total", 2)
    assert metrics_at(port)[0]["tandemfeed_dead_letters_journaled_total"] == 0
    assert adapter.stop() == 0
    assert len([log for log in adapter.logs if log.get("event", "").startswith("cannot store dead letters")]) == 1
