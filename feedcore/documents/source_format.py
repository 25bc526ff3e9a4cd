"""The source format: what the feed source's messages look like, as a document both sides load.

The feed source encodes by it, the adapters' converter decodes by it (docs/source-format.md). Everything wrong with a
document is found here, with file, line and reason. Invariant: equal documents give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from feedcore.documents.primitive_types import PrimitiveType
from feedcore.documents.source_layout import (
    DATA_SIZE_MAX,
    FRAMING_DEFAULT,
    PLACED_SIZE_MAX,
    SOURCE_TYPES,
    Framing,
    SourceData,
    SourceField,
    SourceFormat,
    SourceGroup,
    SourceMessageType,
    VenuePacket,
)
from feedcore.documents.source_schema import messages_of_schema
from feedcore.documents.xml_document import DocumentError, Node, parse_document
from feedcore.sbe import Schema, load_schema

COUNT_MAX = 1_000  # entries of a group of fixed count
EXPONENT_MAX = 18  # more digits than an int64 has say nothing
FIELD_ATTRIBUTES = ("name", "type", "length", "exponent", "null", "offset", "byteOrder")


def load_source_format(path: Path) -> SourceFormat:
    """Load a source-format document.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    root = parse_document(path.read_bytes(), str(path))
    if root.tag != "sourceFormat":
        raise root.error(f"<{root.tag}> is no <sourceFormat>")
    root.only("name", "byteOrder", "sbe")
    for node in root.children:
        if node.tag not in ("packet", "framing", "message"):
            raise node.error(f"<{node.tag}> in <sourceFormat>: it takes <packet>, <framing> and <message>")
    schema = _load_sbe(root, path) if "sbe" in root.attributes else None
    is_big_endian = _byte_order(root, schema.is_big_endian if schema else False)
    framing_node, packet_node = only_one(root, "framing"), only_one(root, "packet")
    framing = FRAMING_DEFAULT if framing_node is None else load_framing(framing_node, is_big_endian)
    packet = None if packet_node is None else load_packet(packet_node, is_big_endian)
    messages: dict[str, SourceMessageType] = messages_of_schema(schema, framing, root) if schema else {}
    for node in root.all("message"):
        add_message(messages, _load_message(node, framing, is_big_endian), node)
    if not messages:
        raise root.error("a source format has at least one <message>")
    return SourceFormat(root.title(), messages, str(path), framing, packet)


def _load_sbe(root: Node, path: Path) -> Schema:
    """The SBE schema that `sbe` names, relative to the document: a venue's own, whose messages are the format's."""
    found = path.parent / root.need("sbe")
    try:
        return load_schema(found)
    except OSError as missing:
        raise root.error(f"sbe={root.need('sbe')!r}: {found}: {missing.strerror}") from None


def add_message(messages: dict[str, SourceMessageType], message: SourceMessageType, node: Node) -> None:
    """Add a message type that frames can be told from the others by."""
    for other in messages.values():
        if other.name == message.name or _same_frames(other, message):
            raise node.error(f"message {message.name!r} (type {message.type_id}) is defined twice")
    messages[message.name] = message


def _same_frames(one: SourceMessageType, other: SourceMessageType) -> bool:
    """True if type and length do not tell them apart."""
    if one.type_id != other.type_id:
        return False
    return one.size == other.size or any(each.longer or each.parts for each in (one, other))


def only_one(root: Node, tag: str) -> Node | None:
    """The child with this tag, of which there may be one."""
    nodes = root.all(tag)
    if len(nodes) > 1:
        raise nodes[1].error(f"a second <{tag}>")
    return nodes[0] if nodes else None


def _byte_order(node: Node, is_big_endian: bool) -> bool:
    """True for big-endian; what the attribute says, else what holds around it."""
    text = node.attributes.get("byteOrder")
    if text not in (None, "littleEndian", "bigEndian"):
        raise node.error(f"byteOrder {text!r}: littleEndian or bigEndian")
    return is_big_endian if text is None else text == "bigEndian"


def _kind(node: Node, attribute: str) -> PrimitiveType:
    kind = SOURCE_TYPES.get(node.need(attribute))
    if kind is None:
        raise node.error(f"unknown type {node.need(attribute)!r}; known are {', '.join(SOURCE_TYPES)}")
    return kind


def _unsigned(node: Node, attribute: str) -> PrimitiveType:
    kind = _kind(node, attribute)
    if kind.minimum < 0 or kind.maximum == 0 or kind.size > 4:
        raise node.error(f"{attribute}={kind.name!r}: a length or count is unsigned, of at most 32 bits")
    return kind


def bounded_int(node: Node, attribute: str, default: int, maximum: int, minimum: int = 0) -> int:
    """An integer attribute within its bounds."""
    value = node.get_int(attribute, default)
    if not minimum <= value <= maximum:
        raise node.error(f"{attribute}={value} of <{node.tag}> is not within {minimum} and {maximum}")
    return value


def load_framing(node: Node, is_big_endian: bool) -> Framing:
    """The <framing> element."""
    names = ("headerSize", "length", "lengthOffset", "lengthUnit", "lengthAdds", "type", "typeOffset")
    node.only(*names, "blockLength", "blockLengthOffset", "byteOrder")
    kind = _kind(node, "type")
    if kind.minimum < 0 or kind.maximum == 0:
        raise node.error(f"type={kind.name!r}: a message type is told by an unsigned integer or a char")
    return Framing(
        header_size=bounded_int(node, "headerSize", 0, 255),
        length=_unsigned(node, "length"),
        length_offset=bounded_int(node, "lengthOffset", 0, 255),
        length_unit=bounded_int(node, "lengthUnit", 1, 64, 1),
        length_adds=bounded_int(node, "lengthAdds", 0, 255),
        type=kind,
        type_offset=bounded_int(node, "typeOffset", 0, 255),
        block_length=_unsigned(node, "blockLength") if "blockLength" in node.attributes else None,
        block_length_offset=bounded_int(node, "blockLengthOffset", 0, 255),
        is_big_endian=_byte_order(node, is_big_endian),
    )


def load_packet(node: Node, is_big_endian: bool) -> VenuePacket:
    """The <packet> element."""
    node.only("name", "headerSize", "byteOrder")
    is_big_endian = _byte_order(node, is_big_endian)
    places: dict[str, SourceField] = {}
    for child in node.children:
        if child.tag not in ("sequence", "count", "sentAt") or child.tag in places:
            raise child.error(f"<{child.tag}> in <packet>: it takes <sequence>, <count> and <sentAt> once each")
        child.only("type", "offset", "byteOrder")
        offset = bounded_int(child, "offset", 0, 255)
        order = _byte_order(child, is_big_endian)
        places[child.tag] = SourceField(child.tag, _kind(child, "type"), offset, 1, 0, None, child.line, order)
    header_size = bounded_int(node, "headerSize", 0, 255)
    for place in places.values():
        if place.offset + place.size > header_size:
            raise node.error(f"{place.name} ends beyond headerSize={header_size}")
    return VenuePacket(node.title(), header_size, places.get("sequence"), places.get("count"), places.get("sentAt"))


def _type_id(node: Node, framing: Framing) -> int:
    """The number of a message type; a single character that is no digit stands for its code."""
    text = node.need("type")
    if len(text) == 1 and (framing.type.name == "char" or not text.isdigit()):
        if not text.isascii():
            raise node.error(f"type {text!r}: one ASCII character")
        return ord(text)
    value = node.need_int("type")
    if not 0 <= value <= framing.type.maximum:
        raise node.error(f"type {value} does not fit in the framing's {framing.type.name}")
    return value


def _load_message(node: Node, framing: Framing, is_big_endian: bool) -> SourceMessageType:
    node.only("name", "type", "size", "longer", "byteOrder")
    is_big_endian = _byte_order(node, is_big_endian)
    fields, size = _load_fields(node, is_big_endian)
    size = bounded_int(node, "size", size, PLACED_SIZE_MAX, size)
    longer = node.attributes.get("longer", "refused")
    if longer not in ("refused", "allowed"):
        raise node.error(f"longer={longer!r}: refused or allowed")
    parts = _load_parts(node, is_big_endian)
    _refuse_repeated(node, fields, parts)
    if longer == "allowed" and parts and framing.block_length is None:
        raise node.error(
            "longer='allowed' with groups or data needs a framing with a blockLength: where would they begin?"
        )
    return SourceMessageType(
        node.name(),
        _type_id(node, framing),
        fields,
        size,
        node.line,
        longer == "allowed" or framing.block_length is not None,
        tuple(parts),
        framing,
    )


def _load_parts(node: Node, is_big_endian: bool) -> list[SourceGroup | SourceData]:
    """The groups and data behind the fixed fields of a message or of a group's entry."""
    parts: list[SourceGroup | SourceData] = []
    for child in node.children:
        if child.tag == "group":
            parts.append(_load_group(child, is_big_endian))
        elif child.tag == "data":
            parts.append(_load_data(child, is_big_endian))
        elif child.tag != "field":
            raise child.error(f"<{child.tag}> in <{node.tag}>: it takes <field>, <group> and <data>")
        elif parts:
            raise child.error("a <field> behind a <group> or <data>: fixed fields come first")
    return parts


def _names(fields: dict[str, SourceField], parts: Sequence[SourceGroup | SourceData]) -> Iterator[str]:
    """Of everything in a message or an entry."""
    yield from fields
    for part in parts:
        yield part.name
        if isinstance(part, SourceGroup):
            yield from _names(part.fields, part.parts)


def _refuse_repeated(node: Node, fields: dict[str, SourceField], parts: list[SourceGroup | SourceData]) -> None:
    found: set[str] = set()
    for name in _names(fields, parts):
        if name in found:
            raise node.error(f"{name!r} is defined twice in message {node.need('name')!r}")
        found.add(name)


def _load_fields(parent: Node, is_big_endian: bool) -> tuple[dict[str, SourceField], int]:
    """(fields, bytes up to the end of the last)."""
    fields: dict[str, SourceField] = {}
    offset = end = 0
    for node in parent.all("field"):
        node.only(*FIELD_ATTRIBUTES)
        name, kind = node.name(), _kind(node, "type")
        if name in fields:
            raise node.error(f"field {name!r} is defined twice")
        length = bounded_int(node, "length", 1, PLACED_SIZE_MAX, 1)
        if length > 1 and kind.name != "char":
            raise node.error(f"length {length}: only char fields have a length above 1")
        offset = bounded_int(node, "offset", offset, PLACED_SIZE_MAX)
        order = _byte_order(node, is_big_endian)
        exponent = bounded_int(node, "exponent", 0, EXPONENT_MAX, -EXPONENT_MAX)
        fields[name] = SourceField(name, kind, offset, length, exponent, _null(node, kind), node.line, order)
        offset += kind.size * length
        end = max(end, offset)
    if end > PLACED_SIZE_MAX:
        raise parent.error(f"{end} bytes of fields: at most {PLACED_SIZE_MAX}")
    return fields, end


def _null(node: Node, kind: PrimitiveType) -> int | None:
    if "null" not in node.attributes:
        return None
    null = node.need_int("null")
    if not kind.minimum <= null <= kind.maximum:
        raise node.error(f"null={null} is no {kind.name}")
    return null


def _load_group(node: Node, is_big_endian: bool) -> SourceGroup:
    node.only("name", "count", "headerSize", "countOffset", "entrySize", "entrySizeOffset", "byteOrder")
    is_big_endian = _byte_order(node, is_big_endian)
    parts = tuple(_load_parts(node, is_big_endian))
    fields, size = _load_fields(node, is_big_endian)
    if size == 0:
        raise node.error("a <group> has at least one <field>")
    if node.need("count").isdigit():
        count = bounded_int(node, "count", 0, COUNT_MAX, 1)
        for name in ("headerSize", "countOffset", "entrySize", "entrySizeOffset"):
            if name in node.attributes:
                raise node.error(f"{name}: a group of fixed count has no header")
        nothing = SOURCE_TYPES["uint8"]
        return SourceGroup(
            node.name(), fields, size, count, 0, nothing, 0, None, 0, is_big_endian, node.line, parts=parts
        )
    group = SourceGroup(
        node.name(),
        fields,
        size,
        None,
        bounded_int(node, "headerSize", _unsigned(node, "count").size, 255, 1),
        _unsigned(node, "count"),
        bounded_int(node, "countOffset", 0, 255),
        _unsigned(node, "entrySize") if "entrySize" in node.attributes else None,
        bounded_int(node, "entrySizeOffset", 0, 255),
        is_big_endian,
        node.line,
        parts=parts,
    )
    ends = [group.count_offset + group.count_kind.size]
    if group.entry_size_kind is not None:
        ends.append(group.entry_size_offset + group.entry_size_kind.size)
    if max(ends) > group.header_size:
        raise node.error(f"the group's header has {group.header_size} bytes, count or entrySize end beyond")
    return group


def _load_data(node: Node, is_big_endian: bool) -> SourceData:
    node.only("name", "length", "headerSize", "maxLength", "byteOrder")
    kind = _unsigned(node, "length")
    header_size = bounded_int(node, "headerSize", kind.size, 255, kind.size)
    most = min(kind.maximum, DATA_SIZE_MAX)
    most = bounded_int(node, "maxLength", most, most, 1)
    order = _byte_order(node, is_big_endian)
    return SourceData(node.name(), kind, header_size, order, node.line, maximum=most)


__all__ = [
    "FRAMING_DEFAULT",
    "DocumentError",
    "Framing",
    "SourceData",
    "SourceField",
    "SourceFormat",
    "SourceGroup",
    "SourceMessageType",
    "VenuePacket",
    "load_source_format",
]
