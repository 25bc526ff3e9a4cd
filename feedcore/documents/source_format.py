"""The source format: the layout of the feed source's messages, as a document that both sides load.

The feed source encodes by it, and the adapters' converter decodes by it (docs/source-format.md). Loading finds every
error in a document, with file, line and reason. Invariant: equal documents give equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tandemfeed.feedcore.documents.primitive_types import SOURCE_TYPES, Place, Primitive
from tandemfeed.feedcore.documents.source_layout import (
    DATA_SIZE_MAX,
    FRAMING_DEFAULT,
    PLACED_SIZE_MAX,
    BlockParts,
    Framing,
    HeaderPart,
    PacketHeader,
    SessionPart,
    SourceBlock,
    SourceData,
    SourceField,
    SourceFormat,
    SourceGroup,
    SourceMessageType,
    SourcePart,
    SymbolSource,
)
from tandemfeed.feedcore.documents.source_schema import messages_of_schema
from tandemfeed.feedcore.documents.xml_document import Node, parse_document
from tandemfeed.feedcore.sbe import Schema, load_schema

# The parts of a <packet>, and the attributes that each may have beside type, offset and byteOrder.
PACKET_PARTS = {
    "sequence": ("counts", "messagesMax", "unnumbered"),
    "count": ("endOfSession",),
    "length": ("adds",),
    "channel": (),
    "session": ("length",),
    "sentAt": ("unit",),
}
UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
HEXADECIMAL = re.compile(r"0[xX][0-9A-Fa-f]{1,8}")
MEASURE = SOURCE_TYPES["uint16"]  # of a length that readers put before a message
MESSAGES_MAX = 128  # numbers per packet of venues that number packets; a datagram of 1,500 bytes has fewer messages
COUNT_MAX = 1_000  # entries of a group of fixed count
EXPONENT_MAX = 18  # an int64 has no more digits
FIELD_ATTRIBUTES = ("name", "type", "length", "exponent", "null", "time", "offset", "byteOrder")
HEADER_ATTRIBUTES = ("headerSize", "countOffset", "entrySize", "entrySizeOffset")


def load_source_format(path: Path) -> SourceFormat:
    """Load a source-format document.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    root = parse_document(path.read_bytes(), str(path))
    if root.tag != "sourceFormat":
        raise root.error(f"the root element is <{root.tag}>; it must be <sourceFormat>")
    root.only("name", "byteOrder", "sbe")
    for node in root.children:
        if node.tag not in ("packet", "framing", "message", "symbols"):
            raise node.error(
                f"<{node.tag}> is not allowed in <sourceFormat>; it takes <packet>, <framing>, <message> and <symbols>"
            )
    schema = _load_sbe(root, path) if "sbe" in root.attributes else None
    _hand_down_byte_order(root, "bigEndian" if schema and schema.is_big_endian else "littleEndian")
    framing_node, packet_node = _only_one(root, "framing"), _only_one(root, "packet")
    framing = FRAMING_DEFAULT if framing_node is None else _load_framing(framing_node)
    packet = None if packet_node is None else _load_packet(packet_node)
    messages = messages_of_schema(schema, framing, root) if schema else {}
    for node in root.all("message"):
        message = _load_message(node, framing)
        if any(message.name == other.name or _same_frames(message, other) for other in messages.values()):
            raise node.error(f"message {message.name!r} (type {message.type_id}) is defined twice")
        messages[message.name] = message
    if not messages:
        raise root.error("a source format needs at least one <message>")
    if framing_node is not None and framing.is_measured:
        _check_measured(framing_node, messages.values())
    symbols = tuple(_load_symbols(node, messages) for node in root.all("symbols"))
    warnings = schema.warnings if schema else ()
    return SourceFormat(root.title(), messages, str(path), framing, warnings, packet, symbols)


def _load_symbols(node: Node, messages: Mapping[str, SourceMessageType]) -> SymbolSource:
    """Which message names the instruments."""
    node.only("message", "by", "text", "byteOrder")
    message = messages.get(node.need("message"))
    if message is None:
        raise node.error(f"there is no <message> {node.need('message')!r}")
    for name in ("by", "text"):
        if node.need(name) not in message.fields:
            raise node.error(f"message {message.name!r} has no field {node.need(name)!r}")
    if not message.fields[node.need("text")].is_text:
        raise node.error(f"text is {node.need('text')!r}, which is a number; it must be a text")
    return SymbolSource(message.name, node.need("by"), node.need("text"))


def _load_sbe(root: Node, path: Path) -> Schema:
    """The venue's SBE schema that `sbe` names, relative to the document. Its messages become the format's."""
    found = path.parent / root.need("sbe")
    try:
        return load_schema(found)
    except OSError as missing:
        raise root.error(f"sbe={root.need('sbe')!r}: {found}: {missing.strerror}") from None


def _hand_down_byte_order(node: Node, around: str) -> None:
    """Give each element without a byte order that of its parent."""
    text = node.attributes.setdefault("byteOrder", around)
    if text not in ("littleEndian", "bigEndian"):
        raise node.error(f"byteOrder is {text!r}; it must be littleEndian or bigEndian")
    for child in node.children:
        _hand_down_byte_order(child, text)


def _is_big_endian(node: Node) -> bool:
    return node.attributes["byteOrder"] == "bigEndian"


def _same_frames(one: SourceMessageType, other: SourceMessageType) -> bool:
    """True if type and length cannot distinguish them."""
    if one.type_id != other.type_id:
        return False
    return one.size == other.size or any(each.longer or each.parts for each in (one, other))


def _only_one(root: Node, tag: str) -> Node | None:
    """The child with this tag; None if there is none, an error if there are several."""
    nodes = root.all(tag)
    if len(nodes) > 1:
        raise nodes[1].error(f"a second <{tag}>; only one is allowed")
    return nodes[0] if nodes else None


def _kind(node: Node, attribute: str) -> Primitive:
    kind = SOURCE_TYPES.get(node.need(attribute))
    if kind is None:
        raise node.error(f"unknown type {node.need(attribute)!r}; known are {', '.join(SOURCE_TYPES)}")
    return kind


def _unsigned(node: Node, attribute: str) -> Primitive:
    kind = _kind(node, attribute)
    if kind.minimum < 0 or kind.is_float or kind.size > 4:
        raise node.error(f"{attribute} is {kind.name!r}; a length or count must be unsigned, with at most 32 bits")
    return kind


def _bounded(node: Node, attribute: str, default: int, maximum: int, minimum: int = 0) -> int:
    """An integer attribute, checked against its bounds."""
    value = node.get_int(attribute, default)
    if not minimum <= value <= maximum:
        raise node.error(f"{attribute} of <{node.tag}> is {value}; it must be from {minimum} to {maximum}")
    return value


def _place(node: Node, attribute: str) -> Place:
    """The type and place of a length or count, from `attribute` and `attributeOffset`."""
    return Place(_unsigned(node, attribute), _bounded(node, f"{attribute}Offset", 0, 255))


def _load_framing(node: Node) -> Framing:
    names = ("headerSize", "length", "lengthOffset", "lengthUnit", "lengthAdds", "type", "typeOffset")
    node.only(*names, "blockLength", "blockLengthOffset", "version", "versionOffset", "byteOrder")
    kind = _kind(node, "type")
    if kind.minimum < 0 or kind.is_float:
        raise node.error(f"type is {kind.name!r}; a message type must be an unsigned integer or a char")
    is_measured = "length" not in node.attributes
    if is_measured and any(name in node.attributes for name in ("lengthOffset", "lengthUnit", "lengthAdds")):
        raise node.error("a <framing> with lengthOffset, lengthUnit or lengthAdds needs length")
    start = MEASURE.size if is_measured else 0  # offsets in the document count from the venue's message

    def place(attribute: str) -> Place | None:
        if attribute not in node.attributes:
            return None
        found = _place(node, attribute)
        return Place(found.kind, start + found.offset)

    return Framing(
        header_size=start + _bounded(node, "headerSize", 0, 255),
        length=place("length") or Place(MEASURE, 0),
        length_unit=_bounded(node, "lengthUnit", 1, 64, 1),
        length_adds=_bounded(node, "lengthAdds", 0, 255),
        type=Place(kind, start + _bounded(node, "typeOffset", 0, 255)),
        block_length=place("blockLength"),
        version=place("version"),
        is_big_endian=_is_big_endian(node),
        is_measured=is_measured,
    )


def _check_measured(node: Node, messages: Iterable[SourceMessageType]) -> None:
    """Check that the length of each message follows from its parts, if messages do not contain it."""
    known: set[int] = set()
    for message in messages:
        if message.longer and message.framing.block_length is None:
            raise node.error(f"message {message.name!r} may be longer, so that <framing> needs length or blockLength")
        if any(group.parts for group in message.groups.values()):
            raise node.error(
                f"message {message.name!r} has groups with parts of their own, so that <framing> needs length"
            )
        if message.type_id in known:
            raise node.error(f"several messages have the type {message.type_id}, so that <framing> needs length")
        known.add(message.type_id)


def _load_packet(node: Node) -> PacketHeader:
    """The <packet>: the venue's packet header."""
    node.only("name", "headerSize", "requests", "byteOrder")
    size, parts = _bounded(node, "headerSize", 0, 255), dict[str, Node]()
    for child in node.children:
        if child.tag not in PACKET_PARTS or (child.tag in parts and child.tag != "sentAt"):
            allowed = ", ".join(f"<{tag}>" for tag in PACKET_PARTS)
            raise child.error(f"<{child.tag}> is not allowed in <packet>; it takes {allowed}; only <sentAt> twice")
        child.only("type", "offset", "byteOrder", *PACKET_PARTS[child.tag])
        parts[child.tag] = child
    found = {tag: _header_part(parts[tag], size) for tag in parts if tag != "session"}
    sequence, count, length = (parts.get(tag) for tag in ("sequence", "count", "length"))
    counts = "messages" if sequence is None else sequence.attributes.get("counts", "messages")
    if counts not in ("messages", "packets"):
        raise node.error(f"counts of <sequence> is {counts!r}; it must be 'messages' or 'packets'")
    if sequence is not None and sequence.attributes.get("unnumbered", "0") != "0":
        given = sequence.attributes["unnumbered"]
        raise sequence.error(
            f"unnumbered is {given!r}; only '0' is possible: packets with the number 0 are not numbered"
        )
    requests = node.attributes.get("requests", "no")
    if requests not in ("no", "header") or (requests == "header" and not found.keys() >= {"sequence", "count"}):
        raise node.error(
            f"requests is {requests!r}; it must be 'header', for a header with sequence and count, or 'no'"
        )
    return PacketHeader(
        node.title(),
        size,
        found.get("sequence"),
        counts == "packets",
        found.get("count"),
        None if count is None or "endOfSession" not in count.attributes else count.need_int("endOfSession"),
        found.get("length"),
        0 if length is None else _bounded(length, "adds", 0, 255),
        found.get("channel"),
        _session_part(parts["session"], size) if "session" in parts else None,
        tuple(_header_part(each, size) for each in node.all("sentAt")),
        requests == "header",
        MESSAGES_MAX if sequence is None else _bounded(sequence, "messagesMax", MESSAGES_MAX, COUNT_MAX, 1),
        sequence is not None and "unnumbered" in sequence.attributes,
    )


def _header_part(node: Node, header_size: int) -> HeaderPart:
    """An unsigned integer of the packet header."""
    kind, unit = _kind(node, "type"), node.attributes.get("unit", "ns")
    if kind.minimum < 0 or kind.is_float:
        raise node.error(f"type is {kind.name!r}; a part of a packet header must be an unsigned integer")
    if unit not in UNITS_NS:
        raise node.error(f"unit is {unit!r}; it must be one of {', '.join(UNITS_NS)}")
    part = HeaderPart(kind, _bounded(node, "offset", 0, 255), _is_big_endian(node), UNITS_NS[unit])
    if part.end > header_size:
        raise node.error(f"{node.tag} ends beyond headerSize={header_size}")
    return part


def _session_part(node: Node, header_size: int) -> SessionPart:
    """The name of the session: a text of `length` characters, or a number."""
    if node.need("type") != "char":
        number = _header_part(node, header_size)
        return SessionPart(number.offset, number.end, number)
    offset = _bounded(node, "offset", 0, 255)
    end = offset + _bounded(node, "length", 1, 255, 1)
    if end > header_size:
        raise node.error(f"session ends beyond headerSize={header_size}")
    return SessionPart(offset, end, None)


def _type_id(node: Node, framing: Framing) -> int:
    """The number of a message type; a single non-digit character stands for its code."""
    text = node.need("type")
    if len(text) == 1 and (framing.type.kind.name == "char" or not text.isdigit()):
        if not text.isascii():
            raise node.error(f"type is {text!r}; it must be a number or one ASCII character")
        return ord(text)
    value = int(text, 16) if HEXADECIMAL.fullmatch(text) else node.need_int("type")
    if not 0 <= value <= framing.type.kind.maximum:
        raise node.error(f"type {value} does not fit in the framing's {framing.type.kind.name}")
    return value


def _load_message(node: Node, framing: Framing) -> SourceMessageType:
    node.only("name", "type", "size", "longer", "byteOrder")
    name, fields, size, parts = _load_block(node)
    size = _bounded(node, "size", size, PLACED_SIZE_MAX, size)
    longer, has_block = node.attributes.get("longer", "refused"), framing.block_length is not None
    if longer not in ("refused", "allowed"):
        raise node.error(f"longer is {longer!r}; it must be refused or allowed")
    if longer == "allowed" and parts and not has_block:
        raise node.error("longer='allowed' needs a framing with a blockLength, which shows where groups and data begin")
    kind, is_longer = _type_id(node, framing), longer == "allowed" or has_block
    message = SourceMessageType(name, fields, size, parts, kind, is_longer, framing)
    found: set[str] = set()
    for each in _names(message):
        if each in found:
            raise node.error(f"{each!r} is defined twice in message {name!r}")
        found.add(each)
    return message


def _load_block(node: Node) -> BlockParts:
    """The fixed fields of a message or of a group's entry, and the groups and data that follow them."""
    parts: list[SourcePart] = []
    for child in node.children:
        if child.tag == "group":
            parts.append(_load_group(child))
        elif child.tag == "data":
            parts.append(_load_data(child))
        elif child.tag != "field":
            raise child.error(f"<{child.tag}> is not allowed in <{node.tag}>; it takes <field>, <group> and <data>")
        elif parts:
            raise child.error("a <field> follows a <group> or <data>; fixed fields must come first")
    return node.name(), *_load_fields(node), tuple(parts)


def _names(block: SourceBlock) -> Iterator[str]:
    """The names of everything in a message or an entry."""
    yield from block.fields
    for part in block.parts:
        yield part.name
        if isinstance(part, SourceGroup):
            yield from _names(part)


def _load_fields(parent: Node) -> tuple[dict[str, SourceField], int]:
    """(fields, bytes up to the end of the last one)."""
    fields: dict[str, SourceField] = {}
    offset = end = 0
    for node in parent.all("field"):
        node.only(*FIELD_ATTRIBUTES)
        name, kind = node.name(), _kind(node, "type")
        if name in fields:
            raise node.error(f"field {name!r} is defined twice")
        length = _bounded(node, "length", 1, PLACED_SIZE_MAX, 1)
        if length > 1 and kind.name != "char":
            raise node.error(f"length is {length}; only char fields may have a length above 1")
        offset = _bounded(node, "offset", offset, PLACED_SIZE_MAX)
        exponent = _bounded(node, "exponent", 0, EXPONENT_MAX, -EXPONENT_MAX)
        null = node.need_int("null") if "null" in node.attributes else None
        if null is not None and not kind.minimum <= null <= kind.maximum:
            raise node.error(f"null is {null}, which is not a value of {kind.name}")
        is_time = "time" in node.attributes
        if is_time and (node.need("time") != "ns" or not kind.is_integer or kind.size != 8 or exponent):
            raise node.error(f"time is {node.need('time')!r}; it must be 'ns', of an integer of 64 bits")
        order = _is_big_endian(node)
        fields[name] = SourceField(name, kind, offset, length, exponent, null, order, is_time=is_time)
        offset += kind.size * length
        end = max(end, offset)
    if end > PLACED_SIZE_MAX:
        raise parent.error(f"the fields have {end} bytes; at most {PLACED_SIZE_MAX} are allowed")
    return fields, end


def _load_group(node: Node) -> SourceGroup:
    node.only("name", "count", *HEADER_ATTRIBUTES, "byteOrder")
    name, fields, size, parts = _load_block(node)
    if size == 0:
        raise node.error("a <group> needs at least one <field>")
    block = (name, fields, size, parts, _is_big_endian(node))
    if node.need("count").isdigit():
        for name in HEADER_ATTRIBUTES:
            if name in node.attributes:
                raise node.error(f"{name}: a group of fixed count must not have a header")
        return SourceGroup(*block, 0, _bounded(node, "count", 0, COUNT_MAX, 1), None)
    count, entry_size = _place(node, "count"), _place(node, "entrySize") if "entrySize" in node.attributes else None
    header_size = _bounded(node, "headerSize", count.size, 255, 1)
    if max(place.end for place in (count, entry_size) if place) > header_size:
        raise node.error(f"count or entrySize ends beyond the group's header of {header_size} bytes")
    return SourceGroup(*block, header_size, count, entry_size)


def _load_data(node: Node) -> SourceData:
    node.only("name", "length", "headerSize", "maxLength", "byteOrder")
    kind = _unsigned(node, "length")
    header_size = _bounded(node, "headerSize", kind.size, 255, kind.size)
    most = min(kind.maximum, DATA_SIZE_MAX)
    most = _bounded(node, "maxLength", most, most, 1)
    return SourceData(node.name(), kind, header_size, most, _is_big_endian(node))
