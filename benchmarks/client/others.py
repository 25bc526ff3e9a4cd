"""What others offer for the same trades: databento's DBN decoder, and a SUB socket with msgspec's structs.

Neither verifies what it receives, merges two streams, notices a loss or makes it good.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import databento_dbn
import msgspec
import zmq

from tandemfeed.runtime.zeromq import Context

Trade = tuple[str, int, int, int]  # symbol, price in 1e-9, size, event time in ns


class Tick(msgspec.Struct, array_like=True, gc=False):
    """A trade as msgspec's users would declare it."""

    symbol: str
    price: int
    size: int
    event_at: int


def as_dbn(trades: Iterable[Trade]) -> bytes:
    """The trades as a DBN file; its records have numbers instead of symbols."""
    numbers: dict[str, int] = {}
    dbn: Any = databento_dbn  # its stubs take the members of its enumerations for texts
    kind = (dbn.Action.TRADE, dbn.Side.BID)
    metadata = dbn.Metadata(
        dataset="XNAS.ITCH",
        start=0,
        stype_in=dbn.SType.RAW_SYMBOL,
        stype_out=dbn.SType.INSTRUMENT_ID,
        schema=dbn.Schema.TRADES,
    )
    records = (
        dbn.TradeMsg(1, numbers.setdefault(symbol, len(numbers)), at_ns, price, size, *kind, 0, at_ns)
        for symbol, price, size, at_ns in trades
    )
    return bytes(metadata.encode()) + b"".join(map(bytes, records))


def read_dbn(data: bytes) -> None:
    """The instrument, price and size of each record, as an application reads them."""
    decoder = databento_dbn.DBNDecoder()
    decoder.write(data)
    for record in decoder.decode():
        if isinstance(record, databento_dbn.TradeMsg):
            _ = record.instrument_id, record.price, record.size


def as_msgpack(trades: Sequence[Trade], packet_size: int) -> list[bytes]:
    """Packets of this many trades."""
    encoder = msgspec.msgpack.Encoder()
    starts = range(0, len(trades), packet_size)
    return [encoder.encode([Tick(*trade) for trade in trades[at : at + packet_size]]) for at in starts]


def read_msgpack(packets: Iterable[bytes]) -> None:
    """The symbol, price and size of each struct."""
    decode = msgspec.msgpack.Decoder(list[Tick]).decode
    for packet in packets:
        for tick in decode(packet):
            _ = tick.symbol, tick.price, tick.size


def read_socket(packets: Sequence[bytes]) -> None:
    """The same, of packets that another process publishes."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/ticks"
        publisher = multiprocessing.get_context("fork").Process(target=_publish, args=(endpoint, packets))
        publisher.start()
        context = Context()
        socket = context.socket(zmq.SocketType.SUB)
        socket.set(zmq.RCVHWM, 0)
        socket.subscribe(b"")
        socket.connect(endpoint)
        read_msgpack(socket.recv() for _ in packets)
        publisher.join()
        context.destroy(linger=0)


def _publish(endpoint: str, packets: Sequence[bytes]) -> None:
    context = Context()
    socket = context.socket(zmq.SocketType.XPUB)
    socket.set(zmq.SNDHWM, 0)
    socket.bind(endpoint)
    socket.recv()  # the subscription
    for packet in packets:
        socket.send(packet)
    context.destroy(linger=-1)
