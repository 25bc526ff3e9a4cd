"""Tables of last values: what they have is what a reader of the whole history would have seen last."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tandemfeed.adapter.records import output_journal
from tandemfeed.adapter.records.last_values import keeper as keeper_module
from tandemfeed.adapter.records.last_values import table as table_module
from tandemfeed.adapter.records.last_values.keeper import DEFAULT_KEY, KeptTable, LastValueKeeper
from tandemfeed.adapter.records.output_journal import OutputJournal
from tandemfeed.adapter.records.replay_service import ReplayService
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.wire.lineage import EpochStart
from tandemfeed.feedcore.wire.output_packet import (
    OUTPUT_FRAME,
    OUTPUT_FRAME_SIZE,
    OutputFlag,
    OutputPacket,
    decode_output_packet,
    encode_runs,
)
from tandemfeed.feedcore.wire.packet_parts import identified_messages
from tandemfeed.feedcore.wire.position import Run
from tandemfeed.v1 import replay_pb2, replay_pb2_grpc
from tests.adapter.peers.rpc_by_hand import channel_to, serve_by_hand, token
from tests.adapter.records.test_output_journal import BLOCK

SESSION = 20_261_121
MODEL = load_message_model(b"""<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="t" id="7" version="1" byteOrder="littleEndian">
  <types>
    <composite name="messageHeader">
      <type name="blockLength" primitiveType="uint16"/><type name="templateId" primitiveType="uint16"/>
      <type name="schemaId" primitiveType="uint16"/><type name="version" primitiveType="uint16"/>
    </composite>
    <type name="Text" primitiveType="char" length="5"/>
    <composite name="varText">
      <type name="length" primitiveType="uint16"/><type name="varData" primitiveType="uint8" length="0"/>
    </composite>
  </types>
  <sbe:message name="Trade" id="1" blockLength="13">
    <field name="number" id="1" type="uint64"/>
    <field name="symbol" id="2" type="Text"/>
    <data name="note" id="3" type="varText"/>
  </sbe:message>
  <sbe:message name="Status" id="2" blockLength="8"><field name="number" id="1" type="uint64"/></sbe:message>
</sbe:messageSchema>""")
Message = tuple[int, int, int, bytes]  # message_seq, source stream, source_seq, body


def trade(number: int, symbol: str, note: str = "") -> bytes:
    body = number.to_bytes(8, "little") + symbol.encode().ljust(5, b"\0")
    return header(13, 1) + body + len(note).to_bytes(2, "little") + note.encode()


def status(number: int) -> bytes:
    return header(8, 2) + number.to_bytes(8, "little")


def header(*numbers: int, schema: int = 7) -> bytes:
    return b"".join(number.to_bytes(2, "little") for number in (*numbers, schema, 1))


def packet(
    first: int,
    runs: Iterable[tuple[int, int, list[list[bytes]]]],
    epoch: int = 1,
    *,
    first_message: int = 0,
    **more: int,
) -> OutputPacket:
    """Args: runs: stream, first source_seq, and the messages of each source message."""
    made, frames = [], b""
    input_seq = first
    message_seq = first_message or first
    for stream, source_seq, sources in runs:
        count = sum(map(len, sources))
        made.append(Run(epoch, input_seq, message_seq, stream, source_seq, len(sources), count))
        for at, bodies in enumerate(sources):
            frames += b"".join(OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(body), at) + body for body in bodies)
        input_seq, message_seq = input_seq + len(sources), message_seq + count
    begin, count = made[0].first_message_seq, message_seq - made[0].first_message_seq
    flags = more.get("flags", 0)
    session, channel = more.get("session", SESSION), more.get("channel", 1)
    return OutputPacket(
        flags, 1, channel, 3, session, epoch, first, begin, count, tuple(made), 77, 0, encode_runs(tuple(made)) + frames
    )


class Feed:
    """Makes a channel's packets, and remembers what was last."""

    def __init__(self, seed: int, epoch: int = 1) -> None:
        self.random, self.epoch = random.Random(seed), epoch
        self.input_seq = self.message_seq = 1
        self.sources = {1: 1, 2: 1}
        self.newest: dict[tuple[int, bytes], Message] = {}

    def packet(self, **more: int) -> OutputPacket:
        runs = []
        for _ in range(self.random.randint(1, 3)):
            stream = self.random.choice((1, 2))
            sources = [self._messages() for _ in range(self.random.randint(1, 4))]
            runs.append((stream, self.sources[stream], sources))
            self.sources[stream] += len(sources)
        made = packet(self.input_seq, runs, self.epoch, first_message=self.message_seq, **more)
        for seq, stream, source, _, body in identified_messages(made, made.first_input_seq, made.end_input_seq):
            key = body[16:21] if body[2] == 1 else b""
            self.newest[body[2], key] = seq, stream, source, body
        self.input_seq, self.message_seq = made.end_input_seq, made.end_message_seq
        return made

    def _messages(self) -> list[bytes]:
        number = self.random.randrange(1 << 30)
        symbol = f"S{self.random.randrange(30):02d}"
        return self.random.choice(
            ([], [status(number)], [trade(number, symbol)], [trade(number, symbol, "x" * (number % 50)), status(1)])
        )


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[OutputJournal]:
    opened = OutputJournal(tmp_path, block_size=BLOCK)
    yield opened
    opened.close()


def kept_table(journal: OutputJournal, key: str = DEFAULT_KEY) -> KeptTable:
    return KeptTable(journal, 1, MODEL, key, lambda: False)


def last_values(table: KeptTable, session: int = SESSION) -> list[Message]:
    table._copied_at_ns = 0  # callers share a copy for a second
    found = table.newest(session)
    assert found is not None
    messages = []
    for data in found[0].packets(1):
        each = decode_output_packet(data)
        assert (each.flags, each.adapter_id, each.session) == (OutputFlag.RETRANSMISSION, 3, session)
        assert each.source_sent_at_ns == 77
        for seq, stream, source, _, body in identified_messages(each, 1, 1 << 60):
            messages.append((seq, stream, source, body))
    return messages


def test_a_table_has_the_last_message_of_each_type_and_key_and_follows_the_journal(
    journal: OutputJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "ENTRIES_BEGUN", 64)  # arrays grow
    monkeypatch.setattr(table_module, "VALUES_BEGUN", 2_048)
    for module in (output_journal, keeper_module):
        monkeypatch.setattr(module, "STRETCHES_MAX", 2)  # several calls
    table, feed, other = kept_table(journal), Feed(1), Feed(2)
    assert table.newest(SESSION) is None  # the journal knows no session
    for _ in range(4):
        for _ in range(300):
            journal.append(feed.packet())
            journal.append(other.packet(channel=2))
        assert last_values(table) == sorted(feed.newest.values())
        found = table.newest(SESSION)
        assert found is not None
        values, epoch = found
        assert (values.next_input_seq, values.next_message_seq) == (feed.input_seq, feed.message_seq)
        assert (values.next_source_seqs, epoch) == (feed.sources, EpochStart(1, 1, 1))
    assert table.newest(SESSION + 1) is None


def test_a_new_session_begins_an_empty_table_and_another_process_makes_the_same_one(tmp_path: Path) -> None:
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    table, feed, next_day = kept_table(journal), Feed(1), Feed(2)
    for _ in range(200):
        journal.append(feed.packet())
    assert last_values(table) == sorted(feed.newest.values())
    for _ in range(200):
        journal.append(next_day.packet(session=SESSION + 1))
    assert last_values(table, SESSION + 1) == sorted(next_day.newest.values())
    assert table.newest(SESSION) is None
    journal.close()
    journal = OutputJournal(tmp_path, block_size=BLOCK)
    assert last_values(kept_table(journal), SESSION + 1) == sorted(next_day.newest.values())
    journal.close()


@pytest.mark.parametrize("is_within_a_packet", [False, True])
def test_after_a_takeover_a_table_has_only_the_history_that_counts(
    journal: OutputJournal, *, is_within_a_packet: bool
) -> None:
    table = kept_table(journal)
    journal.append(packet(1, [(1, 1, [[trade(1, "A")], [trade(2, "B")], [trade(3, "C")]])]))
    journal.append(packet(4, [(1, 4, [[trade(4, "A")], [trade(5, "D")]])]))
    assert [seq for seq, *_ in last_values(table)] == [2, 3, 4, 5]
    fork = 5 if is_within_a_packet else 4
    journal.append(packet(fork, [(2, 1, [[trade(9, "B")]])], epoch=2))
    expected = [(1, 1), (3, 1), (4, 2)] if fork == 4 else [(3, 1), (4, 1), (5, 2)]
    assert [(seq, stream) for seq, stream, *_ in last_values(table)] == expected
    found = table.newest(SESSION)
    assert found is not None
    assert found[1] == EpochStart(2, fork, fork)
    assert found[0].next_source_seqs == {1: fork, 2: 2}
    assert last_values(kept_table(journal)) == last_values(table)


def test_provisional_packets_count_once_a_lease_made_them_decisions(journal: OutputJournal) -> None:
    table = kept_table(journal)
    journal.append(packet(1, [(1, 1, [[trade(1, "A")]])]))
    journal.append(packet(2, [(1, 2, [[trade(2, "A")]])], flags=OutputFlag.PROVISIONAL))
    assert [seq for seq, *_ in last_values(table)] == [1]
    journal.commit_provisional(1, 7, 2, 3)
    journal.append(packet(3, [(1, 3, [[trade(3, "B")]])], epoch=7))
    assert [seq for seq, *_ in last_values(table)] == [2, 3]


def test_a_table_whose_beginning_is_not_in_the_journal_is_not_served(journal: OutputJournal) -> None:
    journal.append(packet(5, [(1, 5, [[trade(1, "A")]])]))
    assert kept_table(journal).newest(SESSION) is None


def test_messages_without_the_key_and_of_other_schemas(journal: OutputJournal) -> None:
    shorter = header(8, 1) + bytes(8)  # a version without symbols
    foreign = header(8, 1, schema=8) + bytes(8)
    unknown = header(8, 9) + bytes(8)
    bodies = [trade(1, "A"), shorter, shorter, foreign, unknown, status(1), status(2), trade(2, "A")]
    journal.append(packet(1, [(1, 1, [[body] for body in bodies])]))
    assert [seq for seq, *_ in last_values(kept_table(journal))] == [3, 7, 8]
    assert [seq for seq, *_ in last_values(kept_table(journal, "number"))] == [1, 3, 6, 7, 8]


def test_the_service_answers_with_the_position_and_then_the_messages(journal: OutputJournal) -> None:
    feed = Feed(3)
    for _ in range(200):
        journal.append(feed.packet())
    service = ReplayService(journal)
    service.feed, service.topics = "equities", {1: "ticks.us"}
    service.last_values = keeper = LastValueKeeper(journal, 1, [1], MODEL)
    running = serve_by_hand(lambda server: replay_pb2_grpc.add_ReplayServicer_to_server(service, server))
    try:
        with channel_to(running, token("client", topics=("ticks.#",))) as channel:
            stub = replay_pb2_grpc.ReplayStub(channel)
            for key in ("symbol", "number"):
                request = replay_pb2.LastValuesRequest(channel_id=1, key=key, session=SESSION)
                first, *rest = (each for each in stub.LastValues(request, timeout=60) if each.ByteSize())
                assert first.position.next_input_seq == feed.input_seq
                assert (first.epoch.epoch, first.epoch.first_input_seq) == (1, 1)
                packets = [each for chunk in rest for each in chunk.packets]
                assert len(packets) == first.message_count
                if key == "symbol":
                    assert len(packets) == len(feed.newest)
            unknown = replay_pb2.LastValuesRequest(channel_id=1, key="colour", session=SESSION)
            assert list(stub.LastValues(unknown, timeout=60)) == []
    finally:
        running.stop()
        keeper.close()
