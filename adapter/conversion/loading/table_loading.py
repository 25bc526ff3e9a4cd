"""Loads a converter table. Loading finds every error in it, with file, line and reason."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.loading.conversion_loading import ConversionLoader
from tandemfeed.adapter.conversion.loading.map_loading import load_maps
from tandemfeed.adapter.conversion.loading.state_cells import Cells
from tandemfeed.adapter.conversion.loading.value_loading import Definitions
from tandemfeed.adapter.conversion.state.order_book import FIRST, BookSpaces
from tandemfeed.adapter.conversion.state.state_kernels import KEY_WORDS_MAX
from tandemfeed.adapter.conversion.state.state_store import KEYS_MAX, KeySpace
from tandemfeed.adapter.conversion.table.functions import FUNCTIONS, ConverterFunction
from tandemfeed.adapter.conversion.table.table import Book, ConverterTable, key_words
from tandemfeed.adapter.conversion.table.values import ValueType
from tandemfeed.feedcore.documents.message_model import MessageModel
from tandemfeed.feedcore.documents.source_layout import SourceFormat
from tandemfeed.feedcore.documents.xml_document import Node, parse_document
from tandemfeed.feedcore.wire.output_packet import OUTPUT_HEADER_SIZE, RUN_SIZE, SEALING_SIZE

ORDERS_MAX = 1 << 24  # orders alive in one <book>, unless the table says otherwise
KEYS_MAX_LIMIT = 1 << 28
ID_SCOPES = ("unique", "perBook")  # order ids are unique over all books of a <book>, or only within each book
ELEMENTS = ("map", "book", "convert")
NUMBER = ValueType()


def load_table(
    source: Path | bytes,
    source_format: SourceFormat,
    model: MessageModel,
    datagram_size_max: int,
    functions: Mapping[str, ConverterFunction] = FUNCTIONS,
) -> ConverterTable:
    """Load and check a converter table.

    Args:
        source: its file; or the document itself, which then names no other files.
        datagram_size_max: size of an output datagram in bytes; a message that cannot fit is an error.
        functions: the available converter functions, by name.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    path = source if isinstance(source, Path) else Path("converter table")
    root = parse_document(source if isinstance(source, bytes) else source.read_bytes(), str(path))
    if root.tag != "converterTable":
        raise root.error(f"the root element is <{root.tag}>; it must be <converterTable>")
    root.only("name", "sourceFormat", "keysMax")
    if root.need("sourceFormat") != source_format.name:
        raise root.error(
            f"made for the source format {root.need('sourceFormat')!r}, loaded with {source_format.name!r} "
            f"({source_format.document})"
        )
    for node in root.children:
        if node.tag not in ELEMENTS:
            raise node.error(
                f"<{node.tag}> is not allowed in <converterTable>; it takes {', '.join(f'<{tag}>' for tag in ELEMENTS)}"
            )
    nodes = root.all("convert")
    if not nodes:
        raise root.error("a converter table needs at least one <convert>")
    cells = Cells(functions)
    for node in nodes:  # declare all kept cells first, so that a message can peek at cells that another message keeps
        cells.declare(node)
    definitions = Definitions(functions, cells, load_maps(root, path.parent), _load_books(root))
    room = datagram_room(datagram_size_max)
    loaders = [ConversionLoader(node, source_format, model, room, definitions) for node in nodes]
    for loader in loaders:
        loader.load_orders()
    conversions = tuple(loader.load() for loader in loaders)
    keys_max = _limit(root, "keysMax", KEYS_MAX)
    spaces = list(cells.spaces(root, keys_max))
    books: list[Book] = []
    for book, node in zip(definitions.books.values(), root.all("book"), strict=True):
        actions = [action.action for each in conversions for action in each.orders if action.book == len(books)]
        own = replace(
            book.spaces,
            orders=len(spaces),
            books=len(spaces) + 1,
            is_chained="clear" in actions,
            id_words=key_words(definitions.order_ids.get(len(books), NUMBER)),
            key_words=key_words(definitions.book_keys.get(len(books), NUMBER)),
        )
        if own.order_words > KEY_WORDS_MAX or own.key_words > KEY_WORDS_MAX:
            known_by = 8 * max(own.order_words, own.key_words)
            raise node.error(f"its keys have {known_by} bytes; at most {8 * KEY_WORDS_MAX} are allowed")
        spaces += _key_spaces(book.name, own, _limit(node, "ordersMax", ORDERS_MAX))
        books.append(replace(book, spaces=own))
    table = ConverterTable(
        root.title(),
        model.schema.schema_id,
        model.schema.version,
        source_format,
        conversions,
        tuple(spaces),
        tuple(books),
        room,
        str(path),
    )
    return replace(table, fingerprint=hashlib.sha256(kernel_source(table).text.encode()).digest()[:16])


def datagram_room(datagram_size_max: int) -> int:
    """Space for messages in an output datagram that carries one run, in bytes."""
    return datagram_size_max - OUTPUT_HEADER_SIZE - SEALING_SIZE - RUN_SIZE


def _limit(node: Node, name: str, default: int) -> int:
    value = node.get_int(name, default)
    if not 1 <= value <= KEYS_MAX_LIMIT:
        raise node.error(f"{name} is {value}; it must be from 1 to {KEYS_MAX_LIMIT}")
    return value


def _key_spaces(name: str, spaces: BookSpaces, orders_max: int) -> tuple[KeySpace, KeySpace]:
    """The key spaces of a <book>: its orders, and the books derived from them. Books are never more than orders."""
    order = (0,) * (3 + (spaces.key_words if spaces.ids_are_unique else 0))  # price, size, side, key of the book
    book = (0,) * (FIRST + spaces.is_chained)
    return (
        KeySpace(f"{name} orders", spaces.order_words, order, local=1 + spaces.is_chained, keys_max=orders_max),
        KeySpace(f"{name} books", spaces.key_words, book, keys_max=orders_max, is_digested=False),
    )


def _load_books(root: Node) -> dict[str, Book]:
    books: dict[str, Book] = {}
    for number, node in enumerate(root.all("book")):
        node.only("name", "exponent", "ordersMax", "ids")
        name = node.name()
        if name in books:
            raise node.error(f"book {name!r} is defined twice")
        ids = node.attributes.get("ids", ID_SCOPES[0])
        if ids not in ID_SCOPES:
            raise node.error(f"ids is {ids!r}; it must be one of {', '.join(ID_SCOPES)}")
        spaces = BookSpaces(2 * number, 2 * number + 1, ids == ID_SCOPES[0])
        books[name] = Book(name, node.get_int("exponent", 0), spaces, node.line)
    return books
