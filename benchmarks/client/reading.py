"""Reading what was delivered: messages per second of processor time, as attributes, numpy arrays and dicts, beside
databento's decoder and msgspec on the same trades.

Only the reading runs, of batches of the shipped tick feed's model, without sockets or the merge (see `merge`).
Each figure is the best of several rounds, so that other load matters little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path

from tandemfeed.benchmarks.client import others
from tandemfeed.client_lib.items import Batch
from tandemfeed.client_lib.messages.decoding import Decoder
from tandemfeed.client_lib.tables import Batches
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import Run

MODEL = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "ticks" / "message-model.xml"
MESSAGES_PER_PACKET = 20  # trades of a full Ethernet frame
PACKET_COUNT = 2_000
SYMBOL_COUNT, PRICE_COUNT = 400, 3_000
ROUNDS = 5


def batches_of(decoder: Decoder) -> list[Batch]:
    """Trades of many symbols at many prices."""
    trade, found, size = decoder.classes["TradeTick"], [], MESSAGES_PER_PACKET
    bodies = []
    for number in range(PRICE_COUNT):
        price = Decimal(38_490_000_000 + number * 10_000_000).scaleb(-9)
        message = trade(
            symbol=f"SYM{number % SYMBOL_COUNT}", eventAt=1_795_357_800_000_000_000 + number, price=price, size=100,
            side="B", flags=0, dayVolume=number, dayHigh=price, dayLow=price, vwap=price,
        )  # fmt: skip
        bodies.append(bytes(message))
    for packet in range(PACKET_COUNT):
        run = Run(1, packet * size + 1, packet * size + 1, 1, packet * size + 1, size, size)
        chosen = [bodies[(packet * size + at) % PRICE_COUNT] for at in range(size)]
        frames = b"".join(OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(each), at) + each for at, each in enumerate(chosen))
        whole = OutputPacket(0, 1, 1, 1, 20_261_121, 1, run.first_input_seq, run.first_message_seq, size, (run,), 0, 0,
                             encode_runs((run,)) + frames)  # fmt: skip
        found.append(Batch(whole, 0, 0, decoder))
    return found


def only_messages(batches: list[Batch]) -> None:
    """Each message, and nothing of it."""
    for batch in batches:
        for _ in batch.messages():
            pass


def three_attributes(batches: list[Batch]) -> None:
    """A text, a decimal and an integer of each message."""
    for batch in batches:
        for tick in batch.messages():
            _ = tick.symbol, tick.price, tick.size


def three_raw_attributes(batches: list[Batch]) -> None:
    """The same as on the wire."""
    for batch in batches:
        for tick in batch.messages():
            raw = tick.raw
            _ = raw.symbol, raw.price, raw.size


def arrays(batches: list[Batch]) -> None:
    """A sum over a column of each batch."""
    for batch in batches:
        for _, rows in batch.arrays():
            rows["size"].sum()


def dicts(batches: list[Batch]) -> None:
    """Each message as a dict of the values on the wire, as `Batch.messages` returned before."""
    for batch in batches:
        for _ in batch._decoder.messages(batch.payload):
            pass


def table(batches: list[Batch]) -> None:
    """One Arrow record batch of everything."""
    Batches(batches, batches[0]._decoder.classes).to_arrow()


def messages_per_second(read: Callable[[], None]) -> int:
    """By processor time."""
    best = 0.0
    for _ in range(ROUNDS):
        begin_ns = time.process_time_ns()
        read()
        best = max(best, PACKET_COUNT * MESSAGES_PER_PACKET / ((time.process_time_ns() - begin_ns) / 1e9))
    return int(best)


def figures() -> dict[str, int]:
    """Messages per second of each way to read, and of others' decoders."""
    batches = batches_of(Decoder(MODEL.read_bytes()))
    shapes = (only_messages, three_attributes, three_raw_attributes, arrays, dicts, table)
    found = {f"{read.__name__}_per_s": messages_per_second(partial(read, batches)) for read in shapes}
    ticks = [(t.symbol, int(t.raw.price), t.size, int(t.raw.event_at)) for each in batches for t in each.messages()]
    databento, packed = others.as_dbn(ticks), others.as_msgpack(ticks, MESSAGES_PER_PACKET)
    found["databento_records_per_s"] = messages_per_second(partial(others.read_dbn, databento))
    found["msgspec_structs_per_s"] = messages_per_second(partial(others.read_msgpack, packed))
    found["msgspec_structs_of_a_socket_per_s"] = messages_per_second(partial(others.read_socket, packed))
    return found
