"""A message model and a converter table that keep every field of a source format, made from the format's document.

Each source message becomes an output message of the same name, with the same fields, groups and variable data. Widths
that SBE does not have become the next one; nulls, exponents and times are declared as the source format declares them.
If the format says which messages name the instruments (`<symbols>`), messages that have only the instrument's number
get a `symbol`, too. A message without any field has no output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tandemfeed.feedcore.documents.primitive_types import PRIMITIVES, Primitive
from tandemfeed.feedcore.documents.source_layout import (
    SourceBlock,
    SourceField,
    SourceFormat,
    SourceMessageType,
)

SCHEMA_ID = 9
CELL = "symbol"  # the field, and the cell that keeps its text


@dataclass(frozen=True, slots=True)
class EveryField:
    """The two documents, as XML."""

    message_model: bytes
    converter_table: bytes


def every_field(source_format: SourceFormat) -> EveryField:
    """The documents that keep every field of a source format."""
    model, table = _Model(source_format), [f'<converterTable name="every-field" sourceFormat="{source_format.name}">']
    for message in source_format.messages.values():
        symbol = _symbol_key(source_format, message)
        if not model.add(message, symbol):
            continue
        table += [f'<convert message="{message.name}" to="{message.name}">', *_keeps(source_format, message)]
        if symbol:
            table.append(f'<field name="{CELL}" function="peek" cell="{CELL}" by="{symbol}"/>')
        table += [*_copies(message), "</convert>"]
    return EveryField(model.text().encode(), "\n".join([*table, "</converterTable>\n"]).encode())


def _symbol_key(source_format: SourceFormat, message: SourceMessageType) -> str | None:
    """The field by which the symbol of a message's instrument is found; None: it has none, or has the symbol itself."""
    for each in source_format.symbols:
        names = {CELL, *(other.text for other in source_format.symbols)}
        if each.by in message.fields and not names & message.fields.keys():
            return each.by
    return None


def _keeps(source_format: SourceFormat, message: SourceMessageType) -> Iterator[str]:
    """The elements that keep the symbol that a message names."""
    size = _symbol_size(source_format)
    for each in source_format.symbols:
        if each.message == message.name:
            yield f'<keep cell="{CELL}" function="last_text" of="{each.text}" length="{size}" by="{each.by}"/>'


def _symbol_size(source_format: SourceFormat) -> int:
    """The length of the longest symbol that a message may name."""
    lengths = (source_format.messages[each.message].fields[each.text].length for each in source_format.symbols)
    return max(lengths, default=0)


def _copies(block: SourceBlock) -> Iterator[str]:
    """The elements that copy everything in a message, or in an entry of a group."""
    for name, each in block.fields.items():
        yield f'<field name="{name}" function="{"text" if each.is_text else "copy"}" of="{name}"/>'
    for group in block.groups.values():
        yield f'<group name="{group.name}" of="{group.name}">'
        yield from _copies(group)
        yield "</group>"
    for name in block.data:
        yield f'<data name="{name}" function="copy" of="{name}"/>'


@dataclass(slots=True)
class _Model:
    """The message model that is being written. Attributes: types: the names of its types, by their definition."""

    source_format: SourceFormat
    types: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def add(self, message: SourceMessageType, symbol_key: str | None) -> bool:
        """Add a message; false if it has nothing to keep."""
        lines = [*self._fields(message, symbol_key), *self._parts(message)]
        if lines:
            opening = f'<sbe:message name="{message.name}" id="{len(self.messages) + 1}">'
            self.messages.append("\n".join([opening, *lines, "</sbe:message>"]))
        return bool(lines)

    def _fields(self, block: SourceBlock, symbol_key: str | None = None) -> Iterator[str]:
        if symbol_key:
            text = self._text(_symbol_size(self.source_format))
            yield f'<field name="{CELL}" id="{len(block.fields) + 1}" type="{text}"/>'
        for number, each in enumerate(block.fields.values(), 1):
            time = ' semanticType="UTCTimestamp"' if each.is_time else ""
            yield f'<field name="{each.name}" id="{number}" type="{self._type(each)}"{time}/>'

    def _parts(self, block: SourceBlock) -> Iterator[str]:
        """SBE has groups before variable data."""
        for number, group in enumerate(block.groups.values(), 1_000):
            yield f'<group name="{group.name}" id="{number}">'
            yield from self._fields(group)
            yield from self._parts(group)
            yield "</group>"
        for number, data in enumerate(block.data.values(), 2_000):
            yield f'<data name="{data.name}" id="{number}" type="varDataEncoding"/>'

    def _type(self, of: SourceField) -> str:
        if of.is_text:
            return self._text(of.length)
        kind, null = _sbe_kind(of.kind), of.null
        if null is None and of.since_version and kind.is_integer:
            null = int(kind.null)
        presence = "" if null is None else f' presence="optional" nullValue="{null}"'
        title = kind.name + ("" if null is None else "OrNull")
        if not of.exponent:
            return self._named(title, f'<type name="{{}}" primitiveType="{kind.name}"{presence}/>')
        return self._named(
            f"{title}E{of.exponent}".replace("-", "minus"),
            f'<composite name="{{}}"><type name="mantissa" primitiveType="{kind.name}"{presence}/>'
            f'<type name="exponent" primitiveType="int8" presence="constant">{of.exponent}</type></composite>',
        )

    def _text(self, length: int) -> str:
        """The type of a text; an empty one is null."""
        return self._named(
            f"text{length}", f'<type name="{{}}" primitiveType="char" length="{length}" presence="optional"/>'
        )

    def _named(self, name: str, definition: str) -> str:
        """The name of a type, which is the wanted one unless another type has it."""
        wanted, number = name, 2
        while definition not in self.types and name in self.types.values():
            name, number = f"{wanted}_{number}", number + 1
        return self.types.setdefault(definition, name)

    def text(self) -> str:
        """The document."""
        types = [definition.format(name) for definition, name in self.types.items()]
        return "\n".join(
            [_OPENING.format(package=self.source_format.name), *types, "</types>", *self.messages, _CLOSING]
        )


def _sbe_kind(kind: Primitive) -> Primitive:
    """The narrowest type of SBE that has all values of a source format's type."""
    wider = (each for each in PRIMITIVES.values() if each.is_integer and each.is_unsigned == kind.is_unsigned)
    return kind if kind.name in PRIMITIVES else next(each for each in wider if each.size >= kind.size)


_OPENING = f"""<?xml version="1.0" encoding="UTF-8"?>
<sbe:messageSchema xmlns:sbe="http://fixprotocol.io/2016/sbe" package="{{package}}" id="{SCHEMA_ID}" version="0"
                   byteOrder="littleEndian">
<types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
  <type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
  <type name="version" primitiveType="uint16"/></composite>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/>
  <type name="numInGroup" primitiveType="uint16"/></composite>
<composite name="varDataEncoding"><type name="length" primitiveType="uint16"/>
  <type name="varData" primitiveType="uint8" length="0" characterEncoding="ISO-8859-1"/></composite>"""
_CLOSING = "</sbe:messageSchema>\n"
