"""Loading a converter table: everything that can be wrong with one is found here, with file, line and reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adapter.conversion.functions import FUNCTIONS, ConverterFunction
from feedcore.documents import DocumentError, Node, parse_document
from feedcore.message_model import MessageModel, ModelField, ModelMessage
from feedcore.output_packet import OUTPUT_HEADER_SIZE, RUN_SIZE, SEAL_TAG_SIZE
from feedcore.primitive_types import PrimitiveType
from feedcore.source_format import SourceField, SourceFormat, SourceMessageType

KEY_SIZE_MAX = 8  # a key is one machine word in the kernel


@dataclass(frozen=True, slots=True)
class Step:
    """One element of a <convert>: a function with its sources, its state and its target.

    Attributes:
        columns: its columns in the state array.
        target: the output field; None for <keep>.
    """

    function: ConverterFunction
    sources: dict[str, SourceField]
    constant: int
    key: SourceField | None
    columns: tuple[int, ...]
    target: ModelField | None


@dataclass(frozen=True, slots=True)
class Conversion:
    """How one source message type becomes one output message."""

    source: SourceMessageType
    target: ModelMessage
    steps: tuple[Step, ...]
    key: SourceField | None


@dataclass(frozen=True, slots=True)
class ConverterTable:
    """A checked table.

    Attributes:
        initial_state: the columns' values before any message.
    """

    name: str
    schema_id: int
    schema_version: int
    conversions: tuple[Conversion, ...]
    initial_state: tuple[int, ...]


class _Cells:
    """State columns by cell name; one cell may be kept by one element of each message type."""

    def __init__(self) -> None:
        self.columns: dict[tuple[str, str], tuple[ConverterFunction, tuple[int, ...]]] = {}
        self.initial: list[int] = []

    def keep(self, cell: str, signature: str, function: ConverterFunction) -> tuple[int, ...] | None:
        """Columns of a cell; None if another function keeps it."""
        known = self.columns.get((cell, signature))
        if known is None:
            first = len(self.initial)
            self.initial += function.cells
            known = (function, tuple(range(first, len(self.initial))))
            self.columns[cell, signature] = known
        return known[1] if known[0] is function else None


def load_table(path: Path, source_format: SourceFormat, model: MessageModel, datagram_size_max: int) -> ConverterTable:
    """Load and check a converter table.

    Args:
        datagram_size_max: bytes of an output datagram; a message that cannot fit is refused here.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    root = parse_document(path.read_bytes(), str(path))
    if root.tag != "converterTable":
        raise root.error(f"<{root.tag}> is no <converterTable>")
    if root.need("sourceFormat") != source_format.name:
        raise root.error(
            f"made for the source format {root.need('sourceFormat')!r}, loaded with {source_format.name!r} "
            f"({source_format.document})"
        )
    cells = _Cells()
    nodes = root.all("convert")
    for node in nodes:  # first all that keep, so that a message may peek at what a later one keeps
        _declare_cells(node, cells)
    room = datagram_size_max - OUTPUT_HEADER_SIZE - SEAL_TAG_SIZE - RUN_SIZE
    conversions = tuple(_load_conversion(node, source_format, model, cells, room) for node in nodes)
    names = [conversion.source.name for conversion in conversions]
    for node, name in zip(nodes, names, strict=True):
        if names.count(name) > 1:
            raise node.error(f"message {name!r} is converted twice")
    if not conversions:
        raise root.error("a converter table has at least one <convert>")
    return ConverterTable(root.need("name"), model.schema_id, model.version, conversions, tuple(cells.initial))


def _function(node: Node) -> ConverterFunction:
    name = node.need("function")
    if name not in FUNCTIONS:
        raise node.error(f"unknown converter function {name!r}; known are {', '.join(sorted(FUNCTIONS))}")
    return FUNCTIONS[name]


def _cell_name(node: Node, function: ConverterFunction) -> str:
    return node.attributes.get("cell", f"{function.name}({node.attributes.get('of', '')})")


def _declare_cells(convert: Node, cells: _Cells) -> None:
    for node in convert.children:
        function = _function(node)
        if function.cells and cells.keep(_cell_name(node, function), node.need("by"), function) is None:
            raise node.error(f"cell {_cell_name(node, function)!r} is kept by another function already")


def _load_conversion(
    node: Node, source_format: SourceFormat, model: MessageModel, cells: _Cells, room: int
) -> Conversion:
    node.only("message", "to")
    source = source_format.messages.get(node.need("message"))
    if source is None:
        raise node.error(f"{source_format.document} has no message {node.need('message')!r}")
    target = model.messages.get(node.need("to"))
    if target is None:
        raise node.error(f"{model.document} has no message {node.need('to')!r}")
    if not target.is_fixed:
        raise node.error(f"{target.name} has groups or variable data: only messages of fixed size are written")
    if target.frame_size > room:
        raise node.error(f"{target.name} takes {target.frame_size} bytes, an output datagram has room for {room}")
    steps = tuple(_load_step(child, source, target, cells) for child in node.children)
    written = [step.target.name for step in steps if step.target is not None]
    for name in target.fields:
        if written.count(name) != 1:
            raise node.error(f"field {name!r} of {target.name} is written {written.count(name)} times, must be once")
    keys = {step.key.name: step.key for step in steps if step.key is not None}
    if len(keys) > 1:
        raise node.error(f"state by {' and by '.join(sorted(keys))}: one key per message")
    return Conversion(source, target, steps, next(iter(keys.values()), None))


def _load_step(node: Node, source: SourceMessageType, target: ModelMessage, cells: _Cells) -> Step:
    function = _function(node)
    if node.tag not in ("field", "keep"):
        raise node.error(f"<{node.tag}> in <convert>: it takes <field> and <keep>")
    node.only("name", "function", "by", "cell", "value", *function.arguments)
    sources = {argument: _source_field(node, argument, source) for argument in function.arguments}
    key, columns = _state(node, function, source, cells)
    constant = node.need_int("value") if function.name == "constant" else 0
    if node.tag == "keep":
        if not function.cells:
            raise node.error(f"{function.name} keeps nothing: use <field>")
        return Step(function, sources, constant, key, columns, None)
    field = target.fields.get(node.need("name"))
    if field is None:
        raise node.error(f"{target.name} has no field {node.need('name')!r}")
    step = Step(function, sources, constant, key, columns, field)
    _check_sum(node, step)
    _check_fit(node, step, field)
    return step


def _source_field(node: Node, argument: str, source: SourceMessageType) -> SourceField:
    field = source.fields.get(node.need(argument))
    if field is None:
        raise node.error(f"source message {source.name!r} has no field {node.need(argument)!r}")
    return field


def _state(
    node: Node, function: ConverterFunction, source: SourceMessageType, cells: _Cells
) -> tuple[SourceField | None, tuple[int, ...]]:
    if not function.keeps_state:
        return None, ()
    key = _source_field(node, "by", source)
    if key.size > KEY_SIZE_MAX:
        raise node.error(f"key {key.name!r} has {key.size} bytes, at most {KEY_SIZE_MAX}")
    found = cells.columns.get((_cell_name(node, function), node.need("by")))
    if found is None:
        raise node.error(f"nobody keeps a cell {node.attributes.get('cell')!r} by {key.name!r}")
    return key, found[1][:1] if function.is_peek else found[1]


def _check_sum(node: Node, step: Step) -> None:
    """Sums are kept in 64 bits (turnover in 96): what is summed must leave room for a day of it."""
    summed = {"day_volume": "of", "vwap": "weight"}.get(step.function.name)
    if summed is None:
        return
    kind = step.sources[summed].kind
    if kind.minimum < 0 or kind.maximum > 0xFFFF_FFFF:
        raise node.error(f"{step.sources[summed].name} is summed: it must be unsigned and of at most 32 bits")


def _check_fit(node: Node, step: Step, field: ModelField) -> None:
    """A value that could lose something on its way into the field is refused."""
    if step.function.name == "constant":
        if not field.kind.minimum <= step.constant <= field.kind.maximum:
            raise node.error(f"{step.constant} does not fit in {field.name} ({field.kind.name})")
        return
    of = step.sources.get("of")
    if step.function.name == "copy":
        assert of is not None
        if of.length != field.length:
            raise node.error(f"{of.name} has {of.length} elements, {field.name} has {field.length}")
        if (of.kind.name == "char") != (field.kind.name == "char"):
            raise node.error(f"{of.name} is {of.kind.name}, {field.name} is {field.kind.name}")
    result: PrimitiveType = step.function.result or (of.kind if of is not None else field.kind)
    if result.minimum < field.kind.minimum or result.maximum > field.kind.maximum:
        raise node.error(f"{result.name} can lose data in {field.name} ({field.kind.name}): choose a wider field")
    if of is not None and step.function.result is None and of.exponent != field.exponent:
        raise node.error(f"{of.name} has the exponent {of.exponent}, {field.name} has {field.exponent}")


__all__ = ["Conversion", "ConverterTable", "DocumentError", "Step", "load_table"]
