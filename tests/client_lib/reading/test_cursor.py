"""A durable cursor: a subscription that begins where the application's last run ended, whatever happened meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemfeed.client_lib import CursorUnusable, NotStored, StoredAgain, Takeover
from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.reading.cursor import Cursor
from tandemfeed.feedcore.merge.effects import Gap, SessionChanged
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, encode_runs
from tandemfeed.feedcore.wire.position import Run
from tests.client_lib.toy_cluster import (
    IDENTITY,
    SECRET,
    SESSION,
    TOPIC,
    OutputPacket,
    ToyCluster,
    heartbeat,
    note,
    packet,
)
from tests.kill_rounds import kill_rounds
from tests.small_disk import SmallDisk

ROUNDS = kill_rounds(3)
LINEAGES = {1: ((1, 1),), 2: ((1, 1), (2, 8))}


class Sending:
    """Sends heartbeats in the background, as adapters do, so that new subscriptions learn what there is."""

    def __init__(self, cluster: ToyCluster) -> None:
        self.next_message_seq, self.epoch, self.session = 1, 1, SESSION
        self._cluster, self._is_over = cluster, threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()

    def send(self, *packets: OutputPacket, is_heard: bool = True) -> None:
        with self._lock:
            for each in packets:
                whole = each._replace(session=self.session)
                for adapter in self._cluster.adapters:
                    adapter.send(whole) if is_heard else adapter.lose(whole)
                self.next_message_seq = max(self.next_message_seq, each.end_message_seq)

    def _beat(self) -> None:
        while not self._is_over.wait(0.01):
            with self._lock:
                for adapter in self._cluster.adapters:
                    beat = heartbeat(self.next_message_seq, lineage=LINEAGES[self.epoch])
                    adapter.send(beat._replace(session=self.session))

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def sending(cluster: ToyCluster) -> Iterator[Sending]:
    sending = Sending(cluster)
    yield sending
    sending.close()


def numbers(cluster: ToyCluster, path: Path, count: int, *, is_failing: bool = False) -> list[int]:
    """The source numbers of the next messages; the application fails at the last one, or leaves after it."""
    found: list[int] = []
    try:
        with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", cursor=path) as subscription:
            for message in subscription:
                found.append(message.number % 1_000_000 + 1_000_000 * (message.number // 1_000_000 - 1))
                if len(found) == count:
                    if is_failing:
                        raise RuntimeError
                    break
    except RuntimeError:
        pass
    return found


def test_the_next_run_begins_after_what_was_handled(cluster: ToyCluster, sending: Sending, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    sending.send(packet(1, 1, 5), packet(6, 6, 5), packet(11, 11, 5))
    assert numbers(cluster, path, 7) == [1, 2, 3, 4, 5, 6, 7]
    assert numbers(cluster, path, 3, is_failing=True) == [8, 9, 10]
    assert numbers(cluster, path, 1) == [10], "a message whose handling failed was not handled"
    sending.send(packet(16, 16, 5), is_heard=False)
    assert numbers(cluster, path, 10) == list(range(11, 21))


def test_coroutines_and_batches_keep_a_cursor_too(cluster: ToyCluster, sending: Sending, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    sending.send(packet(1, 1, 5), packet(6, 6, 5))

    async def read() -> list[int]:
        async with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", cursor=path) as subscription:
            async for message in subscription:
                if message.origin.source_seq == 3:
                    break
            subscription.cursor.note = {"offset": 7}
        async with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", cursor=path) as subscription:
            async for batch in subscription.batches():
                assert subscription.cursor.note == {"offset": 7}
                return batch.message_seqs.tolist()
        return []

    assert asyncio.run(asyncio.wait_for(read(), 30)) == [4, 5]


def test_what_a_poll_returned_is_handled_at_the_next_poll_or_the_end(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    sending.send(packet(1, 1, 5))
    for is_failing in (True, False):
        with (
            contextlib.suppress(RuntimeError),
            cluster.connect() as feed,
            feed.subscribe(TOPIC, start="first", cursor=path) as subscription,
        ):
            while not any(isinstance(item, Batch) for item in subscription.poll()):
                pass
            if is_failing:
                raise RuntimeError
    sending.send(packet(6, 6, 5))
    assert numbers(cluster, path, 1) == [6]


def test_a_position_is_stored_while_the_application_waits_for_the_next_message(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    sending.send(packet(1, 1, 5))
    with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", cursor=path) as subscription:
        reader = threading.Thread(target=lambda: [None for _ in subscription])
        reader.start()
        while not path.exists() or TOPIC not in json.loads(path.read_bytes())["topics"]:
            threading.Event().wait(0.01)
        subscription.stop()
        reader.join()
    assert json.loads(path.read_bytes())["topics"][TOPIC]["next_message_seq"] == 6


def test_messages_that_a_takeover_numbered_afresh_are_not_repeated(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    """Epoch 1 numbered ten messages of stream 1. Epoch 2 continues after the seventh, with two of stream 2 first."""
    path = tmp_path / "model.json"
    sending.send(packet(1, 1, 7), packet(8, 8, 3))
    assert len(numbers(cluster, path, 9)) == 9
    for adapter in cluster.adapters:
        del adapter.journal[1:]
    with sending._lock:
        sending.epoch = 2
    sending.send(packet(8, 1, 2, stream=2, epoch=2), packet(10, 8, 5, epoch=2))
    events: list[Any] = []
    with (
        cluster.connect() as feed,
        feed.subscribe(TOPIC, start="first", cursor=path, on_event=events.append) as subscription,
    ):
        messages = iter(subscription)
        found = [next(messages).number for _ in range(5)]
    assert found == [2_000_001, 2_000_002, 1_000_010, 1_000_011, 1_000_012]
    assert any(isinstance(event, Takeover) for event in events)


def test_the_rest_of_a_session_that_ended_meanwhile_precedes_the_new_session(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    sending.send(packet(1, 1, 5), packet(6, 6, 5))
    assert len(numbers(cluster, path, 7)) == 7
    sending.send(packet(11, 11, 5), is_heard=False)
    old = list(cluster.adapters[0].journal)
    cluster.session = SESSION + 1
    cluster.adapters[1].applied_sessions.add(SESSION)
    with sending._lock:
        sending.session, sending.next_message_seq = SESSION + 1, 1
    sending.send(packet(1, 1, 4))
    new = [each for each in cluster.adapters[0].journal if each.session == SESSION + 1]
    assert (len(old), len(new)) == (3, 1)
    seen: list[Any] = []
    with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", cursor=path) as subscription:
        for item in subscription.items():
            if isinstance(item, Batch):
                seen += [(item.packet.session, seq) for seq in item.message_seqs.tolist()]
            elif isinstance(item, SessionChanged | Gap):
                seen.append(item)
            if seen and seen[-1] == (SESSION + 1, 4):
                break
    changed = SessionChanged(1, SESSION, SESSION + 1, is_complete=True)
    assert seen == [
        *((SESSION, number) for number in range(8, 16)), changed, *((SESSION + 1, number) for number in range(1, 5))
    ]  # fmt: skip


def next_message_seq(stored: dict[str, Any]) -> int:
    return stored["topics"][TOPIC]["next_message_seq"] if TOPIC in stored["topics"] else 1


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Everything that a cursor stores; whenever it may store, it does."""
    found: list[dict[str, Any]] = []
    write = Cursor.write

    def write_and_keep(cursor: Cursor, snapshot: dict[str, Any]) -> None:
        found.append(snapshot)
        write(cursor, snapshot)

    monkeypatch.setattr("tandemfeed.client_lib.reading.cursor.STORE_EVERY_NS", 0)
    monkeypatch.setattr(Cursor, "write", write_and_keep)
    return found


@pytest.mark.parametrize("stores_itself", [False, True])
def test_the_note_of_a_polling_application_is_stored_with_the_position_after_all_that_it_covers(
    cluster: ToyCluster, sending: Sending, stored: list[dict[str, Any]], tmp_path: Path, stores_itself: bool
) -> None:
    sending.send(*(packet(first, first, 5) for first in range(1, 100, 5)))
    with (
        cluster.connect() as feed,
        feed.subscribe(TOPIC, start="first", cursor=tmp_path / "model.json") as subscription,
    ):
        assert subscription.cursor is not None
        while subscription.cursor.note != 101:
            for item in subscription.poll():
                if isinstance(item, Batch):
                    subscription.cursor.note = item.end_message_seq
            if stores_itself:
                subscription.store_cursor()
                assert next_message_seq(stored[-1]) == (subscription.cursor.note or 1)
    noted = [each for each in stored if each["note"] is not None]
    assert [next_message_seq(each) for each in noted] == [each["note"] for each in noted]
    assert noted[-1]["note"] == 101


def test_no_position_is_stored_beyond_the_tables_that_were_read(
    cluster: ToyCluster, sending: Sending, stored: list[dict[str, Any]], tmp_path: Path
) -> None:
    read_to = 1
    with (
        cluster.connect() as feed,
        feed.subscribe(TOPIC, start="first", cursor=tmp_path / "model.json") as subscription,
    ):
        for _ in range(4):
            began = sending.next_message_seq
            timer = threading.Timer(0.2, sending.send, [packet(began + 5, began + 5, 5)])  # a second poll brings it
            timer.start()
            sending.send(packet(began, began, 5))
            stored.clear()
            batches = subscription.read(10)
            timer.join()
            assert all(next_message_seq(each) <= read_to for each in stored)
            read_to = began + batches.message_count
    assert next_message_seq(stored[-1]) == read_to == 41


def test_a_table_whose_reading_an_events_handler_broke_off_comes_again(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    sending.send(packet(1, 1, 5))
    failures = [True, True]

    def fail(_: object) -> None:
        if failures:
            failures.pop()
            raise InterruptedError

    with cluster.connect() as feed, feed.subscribe(TOPIC, start="first", on_event=fail) as subscription:
        found: list[int] = []
        while not found:
            with contextlib.suppress(InterruptedError):
                found += [seq for batch in subscription.read(5) for seq in batch.message_seqs.tolist()]
    assert found == [1, 2, 3, 4, 5]
    assert not failures


def test_reading_continues_after_a_loop_that_was_left(cluster: ToyCluster, sending: Sending) -> None:
    sending.send(*(packet(first, first, 5) for first in range(1, 40, 5)))
    with cluster.connect() as feed, feed.subscribe(TOPIC, start="first") as subscription:
        (first, second) = (next(iter(subscription.batches())), subscription.read(35))
        found = [seq for batch in (first, *second) for seq in batch.message_seqs.tolist()]
    assert found == list(range(1, 41))


def test_a_source_message_that_was_handled_in_part_continues_with_its_next_message(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    """Two source messages, each of which makes three messages."""
    path = tmp_path / "model.json"
    run = Run(1, 1, 1, 1, 1, 2, 6)
    frames = b"".join(
        OUTPUT_FRAME.pack(len(note(0)) + OUTPUT_FRAME.size, at // 3) + note(1_000_000 + at) for at in range(6)
    )
    sending.send(packet(1, 1, 6)._replace(runs=(run,), payload=encode_runs((run,)) + frames))
    found = [numbers(cluster, path, count) for count in (2, 3, 1)]
    assert found == [[0, 1], [2, 3, 4], [5]]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"format": 1, "feed": "f", "note": null, "topics": []}',
        '{"format": 1, "feed": "f", "note": null, "topics": {"t": []}}',
        '{"format": 1, "feed": "f", "note": null, "topics": {"t": {"session": 1, "epochs": [[1, 2]]}}}',
        '{"format": 1, "feed": "f", "note": null, "topics": {"t": {"session": 1, "epochs": [], "next_input_seq": 1, '
        '"next_message_seq": 1, "sources": {"one": 1}, "begun": null}}}',
    ],
)
def test_a_damaged_cursor_is_refused_in_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(CursorUnusable, match=r"is not a cursor: .*; remove it to begin anew"):
        Cursor(path).open()


def test_a_cursor_of_another_feed_or_in_use_or_damaged_is_refused(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    sending.send(packet(1, 1, 5))
    assert numbers(cluster, path, 2) == [1, 2]
    with cluster.connect() as feed:
        with feed.subscribe(TOPIC, cursor=path), pytest.raises(CursorUnusable, match="another process uses the cursor"):
            feed.subscribe(TOPIC, cursor=path)
        path.write_text(path.read_text().replace('"feed": "equities"', '"feed": "bonds"'))
        with pytest.raises(CursorUnusable, match="is of feed 'bonds', not 'equities'; give another cursor"):
            feed.subscribe(TOPIC, cursor=path)
        path.write_text("{}")
        with pytest.raises(CursorUnusable, match=r"is not a cursor: .*; remove it to begin anew"):
            feed.subscribe(TOPIC, cursor=path)
        with pytest.raises(ValueError, match="cursor is 'a/b'; A to Z"):
            feed.subscribe(TOPIC, cursor="a/b")


APPLICATION = """
import os, sys
from pathlib import Path
import tandemfeed as tf

admin, ca, identity, secret, topic, path, output = sys.argv[1:]
with (
    open(output, "ab", buffering=0) as file,
    tf.connect(admin, ca=ca, identity=identity, secret=secret) as feed,
    feed.subscribe(topic, start="first", cursor=Path(path)) as subscription,
):
    note = subscription.cursor.note or {"offset": 0}
    file.truncate(note["offset"])  # what was written after the position was stored will be delivered again
    for place, message in enumerate(subscription):
        file.write(b"%d\\n" % message.number)
        subscription.cursor.note = {"offset": file.seek(0, os.SEEK_END)}
        if place % 7 == 6:
            subscription.store_cursor()
"""


def test_an_application_that_is_killed_at_any_moment_handles_each_message_once(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes(cluster.ca_pem)
    (tmp_path / "application.py").write_text(APPLICATION)
    output, generator = tmp_path / "output", random.Random(16)
    output.touch()
    command = [sys.executable, "application.py", cluster.admin_rpc.endpoint, "ca.pem", IDENTITY, SECRET, TOPIC]
    sent = 0
    for round_number in range(ROUNDS + 1):
        process = subprocess.Popen([*command, "cursor.json", "output"], cwd=tmp_path)
        before = output.stat().st_size
        waited = 0
        for _ in range(3):
            sending.send(packet(sent + 1, sent + 1, 30), is_heard=generator.random() < 0.8)
            sent += 30
        while waited < 3_000 and output.stat().st_size == before and process.poll() is None:
            threading.Event().wait(0.01)
            waited += 1
        assert process.poll() is None
        if round_number < ROUNDS:
            threading.Event().wait(generator.random() * 0.05)
            process.send_signal(signal.SIGKILL)
            process.wait()
    while len(output.read_bytes().splitlines()) < sent and process.poll() is None:
        threading.Event().wait(0.01)
    process.kill()
    process.wait()
    found = [int(line) for line in output.read_bytes().splitlines()]
    assert found == [1_000_000 + number for number in range(1, sent + 1)]


def test_a_cursor_of_a_name_is_in_the_state_folder(
    cluster: ToyCluster, sending: Sending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sending.send(packet(1, 1, 5))
    assert numbers(cluster, "model", 5) == [1, 2, 3, 4, 5]  # type: ignore[arg-type]
    stored = json.loads((tmp_path / "tandemfeed" / "cursors" / "model.json").read_bytes())
    assert stored["topics"][TOPIC]["sources"] == {"1": 6}


def test_a_full_disk_does_not_stop_a_stream_and_the_position_is_stored_later(
    cluster: ToyCluster, sending: Sending, tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    events: list[Any] = []
    sending.send(packet(1, 1, 5), packet(6, 6, 5))
    with SmallDisk(folder, "64k"):
        path, filler = folder / "model.json", folder / "filler"
        with (
            cluster.connect() as feed,
            feed.subscribe(TOPIC, start="first", cursor=path, on_event=events.append) as reader,
        ):
            filler.write_bytes(bytes(48 << 10))
            with contextlib.suppress(OSError), open(filler, "ab", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            for message in reader:
                reader.store_handled()
                if message.origin.message_seq == 7:
                    break
            (failed,) = (each for each in events if isinstance(each, NotStored))
            assert failed.reason == (
                f"cannot write {path}: No space left on device; the position is kept in memory meanwhile; free some "
                "space on its disk"
            )
            with pytest.raises(CursorUnusable, match="No space left on device; the position is kept in memory"):
                reader.store_cursor()
            filler.unlink()
        assert StoredAgain(str(path)) in events
        assert numbers(cluster, path, 3) == [8, 9, 10]


def test_a_folder_that_cannot_be_made_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CursorUnusable, match=r"model\.json: .*File exists"):
        Cursor(tmp_path / "file" / "model.json").open()
