"""The best levels of a book from any source format, and books kept in plain Python to compare with."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from tandemfeed.adapter.conversion.formats.chunks import FrameChunk
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.table import ConverterTable
from tandemfeed.feedcore.documents.message_model import load_message_model
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.replica.output.converter import Converter
from tests.conversion.formats.tick_material import converted

DEPTH = 10
NULL = (1 << 63) - 1
SIDES = ("bid", "ask")
FACTS = ("price", "size", "orders")
NOTHING = [NULL, 0, 0]  # the values of a level that does not exist
HEADER = "".join(
    f'<type name="{name}" primitiveType="uint16"/>' for name in ("blockLength", "templateId", "schemaId", "version")
)
MODEL = """<messageSchema package="books" id="1" version="0" byteOrder="littleEndian">
<types><composite name="messageHeader">{header}</composite>
<composite name="price"><type name="mantissa" primitiveType="int64" presence="optional" nullValue="{null}"/>
<type name="exponent" primitiveType="int8" presence="constant">{exponent}</type></composite>
<type name="size" primitiveType="int64"/><type name="orders" primitiveType="int64"/></types>
<message name="Book" id="1">{fields}</message></messageSchema>"""

Levels = list[int]  # price, size and orders of each level, best first; the bid's, then the ask's


def names_of(depth: int) -> list[str]:
    """The fields of the output, in the order of `Levels`."""
    return [f"{side}_{fact}_{level}" for side in SIDES for level in range(1, depth + 1) for fact in FACTS]


def book_table(
    folder: Path,
    source_format: Path,
    orders: Mapping[str, str],
    *,
    by: str,
    exponent: int,
    ids: str = "unique",
    depth: int = DEPTH,
) -> ConverterTable:
    """A table that writes the message's book after each of the named messages.

    Args:
        folder: for the documents.
        orders: the elements that change the book, by source message.
        by: the field that identifies the book.
        exponent: the exponent of prices.
        ids: as in <book>.
        depth: the number of levels per side.
    """
    names = names_of(depth)
    fields = "".join(
        f'<field name="{name}" id="{number}" type="{name.split("_")[1]}"/>' for number, name in enumerate(names, 1)
    )
    (folder / "model.xml").write_text(MODEL.format(header=HEADER, null=NULL, exponent=exponent, fields=fields))
    reads = "\n".join(
        f'<field name="{name}" function="book_{fact}" book="book" side="{side}" level="{level}" by="{by}"/>'
        for name, (side, fact, level) in ((name, name.split("_")) for name in names)
    )
    converts = "\n".join(
        f'<convert message="{message}" to="Book">{elements}\n{reads}</convert>' for message, elements in orders.items()
    )
    (folder / "table.xml").write_text(
        f'<converterTable name="books" sourceFormat="{load_source_format(source_format).name}">'
        f'<book name="book" exponent="{exponent}" ids="{ids}"/>\n{converts}</converterTable>'
    )
    return load_checked_table(source_format, folder / "table.xml", folder / "model.xml")


def books_of(
    converter: Converter, folder: Path, chunks: Iterable[FrameChunk], *, unknown_orders: int = 0
) -> Iterator[Levels]:
    """The levels after each message; no message may be refused.

    Args:
        folder: where `book_table` wrote its documents.
        unknown_orders: the expected number of changes to unknown orders.
    """
    model = load_message_model(folder / "model.xml")
    for frames in converted(converter, chunks):
        for _, rows in model.arrays(frames):
            yield from np.stack([rows[name] for name in model.schema.messages["Book"].columns], axis=1).tolist()
    counts = converter.counts() | {"not_converted": 0}
    assert counts.pop("unknown_order") == unknown_orders
    assert not any(counts.values()), counts


class PlainBook:
    """One book: its orders in a dictionary, and per side the orders of each price."""

    def __init__(self) -> None:
        self.orders: dict[int, tuple[str, int, int]] = {}  # id: side (B or S), price, size
        self._levels: dict[str, dict[int, dict[int, int]]] = {"B": {}, "S": {}}
        self._prices: dict[str, list[int]] = {"B": [], "S": []}  # ascending

    def put(self, order_id: int, side: str, price: int, size: int) -> None:
        """Add an order; it replaces an order with the same id."""
        self.remove(order_id)
        self.orders[order_id] = side, price, size
        if price not in self._levels[side]:
            self._levels[side][price] = {}
            insort(self._prices[side], price)
        self._levels[side][price][order_id] = size

    def remove(self, order_id: int) -> bool:
        """Remove an order; False if it is unknown."""
        if order_id not in self.orders:
            return False
        side, price, _ = self.orders.pop(order_id)
        del self._levels[side][price][order_id]
        if not self._levels[side][price]:
            del self._levels[side][price]
            del self._prices[side][bisect_left(self._prices[side], price)]
        return True

    def reduce(self, order_id: int, by: int) -> bool:
        """Reduce an order, and remove it if nothing is left; False if it is unknown."""
        if order_id not in self.orders:
            return False
        side, price, size = self.orders[order_id]
        assert by <= size, "a recording never takes more than there is"
        self.remove(order_id)
        if by < size:
            self.put(order_id, side, price, size - by)
        return True

    def clear(self) -> None:
        """Remove all orders."""
        self.__init__()  # type: ignore[misc]

    def levels(self, depth: int = DEPTH) -> Levels:
        """The best levels of both sides."""
        found: Levels = []
        for side in "BS":
            best = self._prices[side][-depth:][::-1] if side == "B" else self._prices[side][:depth]
            for price in best:
                sizes = self._levels[side][price].values()
                found += [price, sum(sizes), len(sizes)]
            found += NOTHING * (depth - len(best))
        return found
