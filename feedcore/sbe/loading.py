"""Loads a message schema's XML as a `Schema`. Errors name file, line and reason."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path, PurePosixPath

from tandemfeed.feedcore.documents.xml_document import DocumentError, Node, parse_document
from tandemfeed.feedcore.sbe.attributes import check_spelling, encoding_of, presence_of, since_version, unsigned
from tandemfeed.feedcore.sbe.messages import Field, Frame, FramePart, Group, MessageType, Schema, VarData
from tandemfeed.feedcore.sbe.type_loading import BLOCK_SIZE_MAX, TypeLoader
from tandemfeed.feedcore.sbe.types import (
    CompositeType,
    EncodingType,
    EnumType,
    Member,
    Presence,
    SetType,
    SimpleType,
)

INCLUDE_COUNT_MAX = 64  # more means that a document includes itself
HEADER_PARTS = ("blockLength", "templateId", "schemaId", "version")
DIMENSION_PARTS = ("blockLength", "numInGroup")
FRAME_PARTS = {*HEADER_PARTS, *DIMENSION_PARTS, "numGroups", "numVarDataFields"}
DEFAULT = "groupSizeEncoding"  # of dimensions
ORDER = {"field": 0, "group": 1, "data": 2}


def load_schema(source: Path | bytes, document: str = "message schema") -> Schema:
    """Load an SBE 1.0 message schema.

    Args:
        source: the schema's file or text; a file may include files of its folder.
        document: the name of a text in errors.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    folder = None
    if isinstance(source, Path):
        folder, document, source = source.parent, str(source), source.read_bytes()
    root = parse_document(source, document)
    if root.tag != "messageSchema":
        raise root.error(f"the root element is <{root.tag}>; it must be SBE's <messageSchema>")
    check_spelling(root)
    root.children = _with_includes(root.children, folder, [])
    return _SchemaLoader(root).schema()


def _with_includes(nodes: list[Node], folder: Path | None, included: list[str]) -> list[Node]:
    """The nodes, with each <xi:include> replaced by its document."""
    whole: list[Node] = []
    for node in nodes:
        if node.tag != "include":
            whole.append(node)
            continue
        href = node.need("href")
        if "://" in href or PurePosixPath(href).is_absolute():
            raise node.error(f"href={href!r}: only files in the schema's folder can be included")
        if folder is None:
            raise node.error(f"href={href!r}: only a schema in a file can include others")
        included.append(href)
        if len(included) > INCLUDE_COUNT_MAX:
            raise node.error(f"more than {INCLUDE_COUNT_MAX} includes: does {href!r} include itself?")
        try:
            data = (folder / href).read_bytes()
        except OSError as missing:
            raise node.error(f"href={href!r}: {missing.strerror or missing}") from missing
        root = parse_document(data, href)
        whole += _with_includes(root.children if root.tag == "messageSchema" else [root], folder, included)
    for node in whole:
        if node.tag == "types":
            node.children = _with_includes(node.children, folder, included)
    return whole


class _SchemaLoader:
    def __init__(self, root: Node) -> None:
        self._root = root
        self._version = unsigned(root, "version", 0)
        type_nodes: list[Node] = []
        for node in root.children:
            if node.tag == "types":
                for child in node.children:  # an include inside <types> may have its own <types>
                    type_nodes += child.children if child.tag == "types" else [child]
            elif node.tag != "message":
                raise node.error(f"<{node.tag}> is not allowed in <messageSchema>; it takes <types> and <message>")
        self._types = TypeLoader(type_nodes, self._version)
        self._frames: dict[str, Frame] = {}

    def schema(self) -> Schema:
        """The checked schema."""
        root = self._root
        order = root.attributes.get("byteOrder", "littleEndian")
        if order not in ("littleEndian", "bigEndian"):
            raise root.error(f"byteOrder={order!r} must be littleEndian or bigEndian")
        messages: dict[str, MessageType] = {}
        by_template: dict[int, MessageType] = {}
        for node in root.all("message"):
            message = MessageType(*self._block(node), node.need_int("id"))
            if message.name in messages or message.template_id in by_template:
                raise node.error(f"message {message.name!r} (id {message.template_id}) is defined twice")
            messages[message.name] = by_template[message.template_id] = message
        header = self._frame(root.attributes.get("headerType", "messageHeader"), root, HEADER_PARTS)
        default: Frame | None = None
        with suppress(DocumentError):  # no group of this schema needs it, or loading that group would have failed
            default = self._frame(DEFAULT, root, DIMENSION_PARTS)
        number, byte_order = unsigned(root, "id", 0), ">" if order == "bigEndian" else "<"
        ids, kinds = (number, self._version), (messages, by_template)
        return Schema(*ids, byte_order, header, default, *kinds, root.document, tuple(self._types.warnings))

    def _frame(self, name: str, user: Node, parts: tuple[str, ...]) -> Frame:
        """A framing composite: the named parts are unsigned integers."""
        if name not in self._frames:
            self._frames[name] = self._make_frame(name, user, parts)
        return self._frames[name]

    def _make_frame(self, name: str, user: Node, needed: tuple[str, ...]) -> Frame:
        found = self._types.resolve(name, user)
        if not isinstance(found, CompositeType):
            raise user.error(f"{name!r} must be a <composite>")
        for missing in needed:
            if missing not in found.members:
                raise user.error(f"composite {name!r} has no member {missing!r}")
        parts: dict[str, FramePart] = {}
        others: dict[str, Member] = {}
        for member in found.members.values():
            part = _frame_part(member)
            if member.name in needed and (part is None or not part.kind.is_unsigned):
                raise user.error(f"{name}.{member.name} must be an unsigned integer")
            if part is None:
                others[member.name] = member
                continue
            parts[member.name] = part
            if part.constant is not None:
                constant = f"{name}.{member.name} is a constant, {part.constant}"
                self._types.warn(user, f"{constant}: messages do not contain it")
        extra = ", ".join(member for member in found.members if member not in FRAME_PARTS)
        if extra:
            self._types.warn(user, f"{name} also has {extra}: readers return it, converter tables cannot use it")
        return Frame(found.size, parts, others)

    def _element(self, node: Node) -> tuple[str, int]:
        """(name, version that added it) of a field, group, variable data or message."""
        version = since_version(node, self._version)
        node.need("id")
        unsigned(node, "id", 0)
        return node.name(), version

    def _block(self, node: Node) -> tuple[str, int, dict[str, Field], dict[str, Group], dict[str, VarData], int]:
        """The parts of a `Block`."""
        element = self._element(node)
        fields: dict[str, Field] = {}
        groups: dict[str, Group] = {}
        data: dict[str, VarData] = {}
        stage, end = 0, 0
        for child in node.children:
            if child.tag not in ORDER:
                raise child.error(f"<{child.tag}> is not allowed in <{node.tag}>; it takes <field>, <group> and <data>")
            name = child.name()
            if name in fields or name in groups or name in data:
                raise child.error(f"{child.tag} {name!r} is defined twice in {node.need('name')!r}")
            if ORDER[child.tag] < stage:
                raise child.error(f"{child.tag} {name!r} must come before the groups and data of its level")
            stage = ORDER[child.tag]
            if child.tag == "field":
                fields[name] = field = self._field(child, end)
                end = max(end, field.offset + field.size)
            elif child.tag == "group":
                dimension = self._frame(child.attributes.get("dimensionType", DEFAULT), child, DIMENSION_PARTS)
                groups[name] = _checked_group(child, Group(*self._block(child), dimension))
            else:
                data[name] = self._data(child)
        length = unsigned(node, "blockLength", end)
        if length < end:
            raise node.error(f"blockLength={length} is less than its fields' {end} bytes")
        if length > BLOCK_SIZE_MAX:
            raise node.error(
                f"the fixed part of {node.name()!r} has {length} bytes, at most {BLOCK_SIZE_MAX} are allowed"
            )
        return (*element, fields, groups, data, length)

    def _field(self, node: Node, end: int) -> Field:
        element = self._element(node)
        kind = self._types.resolve(node.need("type"), node)
        if isinstance(kind, SimpleType) and kind.length == 0:
            raise node.error(f"type {kind.name!r} has a variable length and is for <data> only")
        given = node.attributes.get("semanticType", "")
        if given and kind.semantic_type and given.lower() != kind.semantic_type.lower():
            raise node.error(f"semanticType={given!r}, but its type {kind.name!r} has {kind.semantic_type!r}")
        presence = _agreeing_presence(node, kind)
        if presence is Presence.CONSTANT and kind.presence is Presence.OPTIONAL:
            self._types.warn(node, f"field {node.need('name')!r} is constant, but its type {kind.name!r} is optional")
        constant = self._constant(node, kind) if presence is Presence.CONSTANT else None
        offset = unsigned(node, "offset", end)
        if offset < end and presence is not Presence.CONSTANT:
            raise node.error(f"offset={offset} overlaps the previous field, which ends at {end}")
        return Field(*element, kind, offset, presence, constant, node.line, given or kind.semantic_type)

    def _constant(self, node: Node, kind: EncodingType) -> object:
        """The value that readers return: for an enumeration, the value's name."""
        has_reference = "valueRef" in node.attributes
        if isinstance(kind, SimpleType):
            if kind.constant is not None and not has_reference:
                return kind.constant
            return self._types.constant(node, kind.primitive, kind.length)[0]
        if has_reference:
            enum, name = self._types.reference(node)
            if enum is not kind:
                raise node.error(f"valueRef={node.need('valueRef')!r} is not a value of type {kind.name!r}")
            return name
        if isinstance(kind, EnumType):
            text, is_char = node.text.strip(), kind.primitive.name == "char"
            for name, value in kind.values.items():
                if text in (name, str(value)) or (is_char and text == chr(value)):
                    return name
        raise node.error("presence='constant' needs a valueRef or the value as the element's text")

    def _data(self, node: Node) -> VarData:
        element = self._element(node)
        kind = self._types.resolve(node.need("type"), node)
        parts = list(kind.members.values()) if isinstance(kind, CompositeType) else []
        if len(parts) != 2 or parts[0].name != "length":
            raise node.error(f"type {kind.name!r} of <data> must be a composite of a length and the data")
        length, octets = parts[0].type, parts[1].type
        if not isinstance(length, SimpleType) or not length.primitive.is_unsigned or length.length != 1:
            raise node.error(f"{kind.name}.length must be an unsigned integer")
        if not isinstance(octets, SimpleType) or octets.primitive.size != 1:
            raise node.error(f"{kind.name}.{parts[1].name} must be uint8, int8 or char")
        if octets.primitive.name == "int8":
            self._types.warn(node, f"{kind.name}.{parts[1].name} is int8 and is read as octets")
        high = length.primitive.maximum - 1 if length.maximum is None else length.maximum
        encoding = octets.character_encoding or encoding_of(node, "")
        return VarData(*element, length.primitive, int(length.minimum or 0), int(high), encoding)


def _frame_part(member: Member) -> FramePart | None:
    """A frame's member as an integer; None if it is not one."""
    kind = member.type
    if not isinstance(kind, SimpleType) or kind.length != 1 or not kind.primitive.is_integer:
        return None
    low = kind.primitive.minimum if kind.minimum is None else kind.minimum
    high = kind.primitive.maximum if kind.maximum is None else kind.maximum
    constant = None if kind.constant is None else int(kind.constant)
    return FramePart(kind.primitive, member.offset, int(low), int(high), constant)


def _agreeing_presence(node: Node, kind: EncodingType) -> Presence:
    given, own = presence_of(node), kind.presence
    if given is None:
        return own
    if own is Presence.OPTIONAL and given is Presence.CONSTANT:
        return given
    if own is not Presence.REQUIRED and given is not own:
        raise node.error(f"presence={given.value!r}, but its type {kind.name!r} is {own.value}")
    if given is Presence.OPTIONAL and isinstance(kind, SetType):
        return Presence.REQUIRED  # a set has no null
    return given


def _checked_group(node: Node, group: Group) -> Group:
    """Refuse constant dimensions that no message could follow."""
    if group.count.constant is not None:
        raise node.error(f"the numInGroup of {group.name!r} is a constant; messages must contain it")
    if group.length.constant not in (None, group.block_length):
        raise node.error(
            f"the dimensions of {group.name!r} have the constant blockLength {group.length.constant}, "
            f"its entries have {group.block_length} bytes"
        )
    return group
