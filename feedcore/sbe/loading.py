"""From a message schema's XML to a `Schema`; everything wrong with it is an error with file, line and reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from feedcore.documents.xml_document import Node, parse_document
from feedcore.sbe.attributes import check_spelling, encoding_of, notes_of, presence_of, unsigned
from feedcore.sbe.primitives import Number
from feedcore.sbe.type_loading import BLOCK_SIZE_MAX, TypeLoader, constant_text
from feedcore.sbe.types import (
    Block,
    CompositeType,
    EncodingType,
    EnumType,
    Field,
    Group,
    MessageType,
    Notes,
    Presence,
    Schema,
    SetType,
    SimpleType,
    VarData,
)

INCLUDE_COUNT_MAX = 64  # more is a document that includes itself
HEADER_PARTS = ("blockLength", "templateId", "schemaId", "version")
DIMENSION_PARTS = ("blockLength", "numInGroup")
ORDER = {"field": 0, "group": 1, "data": 2}

Include = Callable[[str], bytes]


def load_schema(source: Path | bytes, document: str = "message schema", include: Include | None = None) -> Schema:
    """Load an SBE 1.0 message schema.

    Args:
        source: the schema's file or text.
        document: what to call a text in errors.
        include: gives the document behind an <xi:include href>; for a file it defaults to its neighbours.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    if isinstance(source, Path):
        folder, document = source.parent, str(source)
        data = source.read_bytes()
        include = include or (lambda href: (folder / href).read_bytes())
    else:
        data = source
    root = parse_document(data, document)
    if root.tag != "messageSchema":
        raise root.error(f"<{root.tag}> is no SBE <messageSchema>")
    check_spelling(root)
    root.children = _with_includes(root.children, include, [])
    return _SchemaLoader(root).schema()


def _with_includes(nodes: list[Node], include: Include | None, included: list[str]) -> list[Node]:
    """The nodes, each <xi:include> replaced by the document it names."""
    whole: list[Node] = []
    for node in nodes:
        if node.tag != "include":
            whole.append(node)
            continue
        href = node.need("href")
        if "://" in href or PurePosixPath(href).is_absolute():
            raise node.error(f"href={href!r}: only files beside the schema are included")
        if include is None:
            raise node.error(f"href={href!r}: nothing can be included in a schema that is no file")
        included.append(href)
        if len(included) > INCLUDE_COUNT_MAX:
            raise node.error(f"more than {INCLUDE_COUNT_MAX} includes: does {href!r} include itself?")
        try:
            data = include(href)
        except OSError as missing:
            raise node.error(f"href={href!r}: {missing.strerror or missing}") from missing
        root = parse_document(data, href)
        if root.tag == "messageSchema":
            whole += _with_includes(root.children, include, included)
        else:
            whole += _with_includes([root], include, included)
    for node in whole:
        if node.tag == "types":
            node.children = _with_includes(node.children, include, included)
    return whole


class _SchemaLoader:
    def __init__(self, root: Node) -> None:
        self._root = root
        self._version = unsigned(root, "version", 0)
        type_nodes: list[Node] = []
        for node in root.children:
            if node.tag == "types":
                for child in node.children:  # an include inside <types> may bring a <types> of its own
                    type_nodes += child.children if child.tag == "types" else [child]
            elif node.tag != "message":
                raise node.error(f"<{node.tag}> in <messageSchema>: it takes <types> and <message>")
        self._types = TypeLoader(type_nodes, self._version)

    def schema(self) -> Schema:
        """The checked schema."""
        root = self._root
        order = root.attributes.get("byteOrder", "littleEndian")
        if order not in ("littleEndian", "bigEndian"):
            raise root.error(f"byteOrder={order!r} is neither littleEndian nor bigEndian")
        messages: dict[str, MessageType] = {}
        by_template: dict[int, MessageType] = {}
        for node in root.all("message"):
            message = self._message(node)
            if message.name in messages or message.template_id in by_template:
                raise node.error(f"message {message.name!r} (id {message.template_id}) is defined twice")
            messages[message.name] = by_template[message.template_id] = message
        header = self._composite_of(root.attributes.get("headerType", "messageHeader"), root, HEADER_PARTS)
        attributes = root.attributes
        return Schema(
            attributes.get("package", ""),
            unsigned(root, "id", 0),
            self._version,
            attributes.get("semanticVersion", ""),
            attributes.get("description", ""),
            order == "bigEndian",
            header,
            self._types.all(),
            messages,
            by_template,
            root.document,
        )

    def _composite_of(self, name: str, user: Node, parts: tuple[str, ...]) -> CompositeType:
        """A composite that frames something: the parts named are single unsigned integers, the others integers."""
        found = self._types.resolve(name, user)
        if not isinstance(found, CompositeType):
            raise user.error(f"{name!r} must be a <composite>")
        for part in parts:
            if part not in found.members:
                raise user.error(f"composite {name!r} has no member {part!r}")
        for member in found.members.values():
            kind = member.type
            if not isinstance(kind, SimpleType) or kind.size != kind.primitive.size or not kind.primitive.is_integer:
                raise user.error(f"{name}.{member.name} must be an integer")
            if member.name in parts and not kind.primitive.is_unsigned:
                raise user.error(f"{name}.{member.name} must be an unsigned integer")
        return found

    def _message(self, node: Node) -> MessageType:
        notes = notes_of(node, self._version)
        return MessageType(node.name(), unsigned_id(node), self._block(node), notes, node.line)

    def _block(self, node: Node) -> Block:
        fields: dict[str, Field] = {}
        groups: dict[str, Group] = {}
        data: dict[str, VarData] = {}
        stage, end = 0, 0
        for child in node.children:
            if child.tag not in ORDER:
                raise child.error(f"<{child.tag}> in <{node.tag}>: it takes <field>, <group> and <data>")
            name = child.name()
            if name in fields or name in groups or name in data:
                raise child.error(f"{child.tag} {name!r} is defined twice in {node.need('name')!r}")
            if ORDER[child.tag] < stage:
                raise child.error(f"{child.tag} {name!r} must stand before the groups and data of its level")
            stage = ORDER[child.tag]
            if child.tag == "field":
                fields[name] = field = self._field(child, end)
                end = max(end, field.offset + field.size)
            elif child.tag == "group":
                groups[name] = self._group(child)
            else:
                data[name] = self._data(child)
        length = unsigned(node, "blockLength", end)
        if length < end:
            raise node.error(f"blockLength={length} is less than its fields' {end} bytes")
        if length > BLOCK_SIZE_MAX:
            raise node.error(
                f"{node.name()!r} has a fixed part of {length} bytes, at most {BLOCK_SIZE_MAX} are possible"
            )
        return Block(fields, groups, data, length)

    def _field(self, node: Node, end: int) -> Field:
        notes = notes_of(node, self._version)
        kind = self._types.resolve(node.need("type"), node)
        if isinstance(kind, SimpleType) and kind.length == 0:
            raise node.error(f"type {kind.name!r} has a variable length: it is for <data>")
        notes = _agreeing_notes(node, notes, kind)
        presence = _agreeing_presence(node, kind)
        constant: object = None
        if presence is Presence.CONSTANT:
            constant = self._constant(node, kind)
        offset = unsigned(node, "offset", end)
        if offset < end and presence is not Presence.CONSTANT:
            raise node.error(f"offset={offset} overlaps the field before, which ends at {end}")
        null: Number | None = kind.null if isinstance(kind, SimpleType | EnumType) else None
        return Field(node.name(), unsigned_id(node), kind, offset, presence, null, constant, notes, node.line)

    def _constant(self, node: Node, kind: EncodingType) -> object:
        if "valueRef" in node.attributes:
            enum, value = self._types.reference(node)
            if kind is enum:
                return value.name
            if isinstance(kind, SimpleType) and kind.length == 1:
                return chr(value.value) if kind.primitive.name == "char" else value.value
            raise node.error(f"valueRef={node.need('valueRef')!r} is no value of type {kind.name!r}")
        if isinstance(kind, SimpleType):
            return kind.constant if kind.constant is not None else constant_text(node, kind.primitive, kind.length)[0]
        if isinstance(kind, EnumType):
            for value in kind.values.values():
                if node.text.strip() in (value.name, str(value.value), chr(value.value)):
                    return value.name
        raise node.error("presence='constant' needs a valueRef or the value as the element's text")

    def _group(self, node: Node) -> Group:
        notes = notes_of(node, self._version)
        dimension = self._composite_of(node.attributes.get("dimensionType", "groupSizeEncoding"), node, DIMENSION_PARTS)
        return Group(node.name(), unsigned_id(node), dimension, self._block(node), notes, node.line)

    def _data(self, node: Node) -> VarData:
        notes = notes_of(node, self._version)
        kind = self._types.resolve(node.need("type"), node)
        parts = list(kind.members.values()) if isinstance(kind, CompositeType) else []
        if len(parts) != 2 or parts[0].name != "length":
            raise node.error(f"type {kind.name!r} of <data> must be a composite of a length and the data")
        length, octets = parts[0].type, parts[1].type
        if not isinstance(length, SimpleType) or not length.primitive.is_unsigned or length.length != 1:
            raise node.error(f"{kind.name}.length must be an unsigned integer")
        if not isinstance(octets, SimpleType) or octets.primitive.size != 1 or octets.primitive.name == "int8":
            raise node.error(f"{kind.name}.{parts[1].name} must be of uint8 or char")
        high = length.primitive.maximum - 1 if length.maximum is None else length.maximum
        encoding = octets.character_encoding or encoding_of(node, "")
        return VarData(
            node.name(),
            unsigned_id(node),
            length.primitive,
            int(length.minimum or 0),
            int(high),
            encoding,
            notes,
            node.line,
        )


def unsigned_id(node: Node) -> int:
    """The id attribute."""
    node.need("id")
    return unsigned(node, "id", 0)


def _agreeing_notes(node: Node, notes: Notes, kind: EncodingType) -> Notes:
    """A field inherits its type's semantic type; if both say one, they say the same."""
    inherited = kind.notes.semantic_type
    if notes.semantic_type and inherited and notes.semantic_type.lower() != inherited.lower():
        raise node.error(f"semanticType={notes.semantic_type!r}, but its type {kind.name!r} says {inherited!r}")
    semantic = notes.semantic_type or inherited
    return Notes(notes.description, semantic, notes.since_version, notes.deprecated, notes.extra)


def _agreeing_presence(node: Node, kind: EncodingType) -> Presence:
    given = presence_of(node)
    own = kind.presence if isinstance(kind, SimpleType | EnumType) else Presence.REQUIRED
    if given is None:
        return own
    if own is not Presence.REQUIRED and given is not own:
        raise node.error(f"presence={given.value!r}, but its type {kind.name!r} is {own.value}")
    if given is Presence.OPTIONAL and isinstance(kind, SetType):
        return Presence.REQUIRED  # a set has no null: with no choice made all its bits are off
    return given
