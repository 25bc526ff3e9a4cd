"""The <types> of a schema. They may come in any order, so each is resolved at its first use."""

from __future__ import annotations

from tandemfeed.feedcore.documents.primitive_types import PRIMITIVES, Number, Primitive
from tandemfeed.feedcore.documents.xml_document import Node
from tandemfeed.feedcore.sbe.attributes import encoding_of, parsed, presence_of, since_version, unsigned, value_of
from tandemfeed.feedcore.sbe.types import CompositeType, EncodingType, EnumType, Member, Presence, SetType, SimpleType

BUILT_IN: dict[str, EncodingType] = {
    name: SimpleType(name, "", Presence.REQUIRED, kind, kind.null, character_encoding="ascii" if name == "char" else "")
    for name, kind in PRIMITIVES.items()
}
REFERENCES_MAX = 32  # types that refer to each other: each takes a few nested calls, and Python allows a thousand
BLOCK_SIZE_MAX = 65_535  # bytes of a message's or an entry's fixed part: the maximum of a uint16 blockLength
COMPOSITE_VALUES_MAX = (
    256  # in all its composites; with <ref>s to composites of <ref>s, thirty lines could make a billion
)
_MONTH_YEAR_OPTIONAL = ("year", "day", "week")  # the standard's MonthYear: these may be null without an attribute


class TypeLoader:
    """Resolves encodings by name.

    Attributes:
        warnings: what is unusual in the schema, with file and line.
    """

    def __init__(self, nodes: list[Node], schema_version: int) -> None:
        self.warnings: list[str] = []
        self._version = schema_version
        self._nodes: dict[str, Node] = {}
        self._resolved: dict[str, EncodingType] = {}
        self._resolving: list[str] = []
        for node in nodes:
            name = node.name()
            if node.tag not in ("type", "composite", "enum", "set"):
                raise node.error(
                    f"<{node.tag}> is not allowed in <types>; it takes <type>, <composite>, <enum> and <set>"
                )
            if name in self._nodes:
                raise node.error(f"type {name!r} is defined twice, first in line {self._nodes[name].line}")
            self._nodes[name] = node
        for name, node in self._nodes.items():  # unused types may have errors too
            self.resolve(name, node)

    def resolve(self, name: str, user: Node) -> EncodingType:
        """The type of this name. If there is none, the error names the element `user`."""
        if name in self._resolved:
            return self._resolved[name]
        node = self._nodes.get(name)
        if node is None:
            if name in BUILT_IN:
                return BUILT_IN[name]
            raise user.error(f"unknown type {name!r}")
        if name in self._resolving:
            raise user.error(f"type {name!r} contains itself: {' -> '.join([*self._resolving, name])}")
        if len(self._resolving) >= REFERENCES_MAX:
            raise user.error(f"more than {REFERENCES_MAX} types refer to each other: {self._resolving[0]!r} and so on")
        self._resolving.append(name)
        self._resolved[name] = self._make(node)
        self._resolving.pop()
        return self._resolved[name]

    def warn(self, node: Node, unusual: str) -> None:
        """Note something that the standard does not permit, but whose meaning is clear."""
        self.warnings.append(str(node.error(unusual)))

    def reference(self, node: Node) -> tuple[EnumType, str]:
        """The enumeration and the name of its value that `valueRef` ("Enum.Name") names."""
        text = node.need("valueRef")
        enum_name, _, value_name = text.partition(".")
        enum = self.resolve(enum_name, node)
        if not isinstance(enum, EnumType) or value_name not in enum.values:
            raise node.error(f"valueRef={text!r} is not a value of an <enum>")
        return enum, value_name

    def constant(self, node: Node, primitive: Primitive, length: int) -> tuple[str | Number, int]:
        """(value, length) of a constant. Without a length attribute, the length is the text's."""
        is_char = primitive.name == "char"
        text = self._value_text(node, is_char)
        if "valueRef" in node.attributes:
            enum, name = self.reference(node)
            value = enum.values[name]
            if not primitive.holds(value):
                raise node.error(f"{enum.name}.{name} does not fit in {primitive.name}")
            return (chr(value) if is_char else value), 1
        if not text:
            raise node.error("presence='constant' needs the value as the element's text")
        if not is_char:
            return parsed(node, primitive, text), 1
        if "length" in node.attributes and len(text) > length:
            raise node.error(f"{text!r} is longer than {length}")
        return text, max(length, len(text))

    def _make(self, node: Node, is_month_year_part: bool = False) -> EncodingType:
        since_version(node, self._version)
        semantic_type = node.attributes.get("semanticType", "")
        if node.tag == "type":
            return self._simple(node, semantic_type, is_month_year_part)
        if node.tag == "enum":
            return self._enum(node, semantic_type)
        if node.tag == "set":
            return self._set(node, semantic_type)
        if node.tag == "composite":
            return self._composite(node, semantic_type)
        raise node.error(
            f"<{node.tag}> is not allowed in a composite; it takes <type>, <composite>, <enum>, <set> and <ref>"
        )

    def _simple(self, node: Node, semantic_type: str, is_month_year_part: bool) -> SimpleType:
        name, primitive = node.name(), PRIMITIVES.get(node.need("primitiveType"))
        if primitive is None:
            known = ", ".join(PRIMITIVES)
            raise node.error(f"unknown primitiveType {node.need('primitiveType')!r}; known are {known}")
        presence = presence_of(node) or (Presence.OPTIONAL if is_month_year_part else Presence.REQUIRED)
        null = value_of(node, "nullValue", primitive)
        if null is not None and presence is not Presence.OPTIONAL:
            self.warn(node, f"type {name!r} is {presence.value}: its nullValue applies only to optional fields")
        null = primitive.null if null is None else null
        length = unsigned(node, "length", 1)
        constant = None
        if presence is Presence.CONSTANT:
            constant, length = self.constant(node, primitive, length)
        low, high = value_of(node, "minValue", primitive), value_of(node, "maxValue", primitive)
        if low is not None and high is not None and low > high:
            raise node.error(f"minValue={low} is above maxValue={high}")
        encoding = encoding_of(node, "US-ASCII" if primitive.name == "char" else "")
        return SimpleType(name, semantic_type, presence, primitive, null, length, low, high, constant, encoding)

    def _enum(self, node: Node, semantic_type: str) -> EnumType:
        encoding = self._scalar_encoding(node)
        primitive = encoding.primitive
        if primitive.is_float:
            raise node.error(f"encodingType is {primitive.name}; an <enum> must be of char or an integer type")
        values = self._valid_values(node, "validValue", primitive)
        if not values:
            raise node.error("an <enum> needs at least one <validValue>")
        return EnumType(node.name(), semantic_type, encoding.presence, primitive, encoding.null, values)

    def _set(self, node: Node, semantic_type: str) -> SetType:
        primitive = self._scalar_encoding(node).primitive
        if not primitive.is_unsigned:
            raise node.error(f"encodingType is {primitive.name}; a <set> must be of an unsigned integer type")
        choices = self._valid_values(node, "choice", PRIMITIVES["uint8"], 8 * primitive.size)
        return SetType(node.name(), semantic_type, Presence.REQUIRED, primitive, choices)

    def _valid_values(self, node: Node, tag: str, primitive: Primitive, end: int | None = None) -> dict[str, int]:
        """The values of an <enum>, or the bit numbers of a <set> (all below `end`), by name."""
        found: dict[str, int] = {}
        by_value: dict[int, str] = {}
        for child in node.children:
            if child.tag != tag:
                raise child.error(f"<{child.tag}> is not allowed in <{node.tag}>; it takes <{tag}>")
            since_version(child, self._version)
            name, text = child.label(), self._value_text(child, primitive.name == "char")
            if name in found:
                raise child.error(f"{name!r} is defined twice in {node.need('name')!r}")
            if not text:
                raise child.error(f"<{tag}> {name!r} has no value")
            value = int(parsed(child, primitive, text))
            if end is not None and value >= end:
                raise child.error(f"bit {value} does not exist in {node.need('encodingType')}")
            if value in by_value:
                raise child.error(f"value {text!r} is already {by_value[value]!r}")
            found[name], by_value[value] = value, name
        return found

    def _value_text(self, node: Node, is_char: bool) -> str:
        """The text of a constant or of an enumeration's value, without white space around it."""
        if is_char and node.text == " ":
            self.warn(node, f"the value of {node.need('name')!r} is a blank")
            return node.text
        return node.text.strip()

    def _scalar_encoding(self, node: Node) -> SimpleType:
        name = node.need("encodingType")
        found = self.resolve(name, node)
        if not isinstance(found, SimpleType) or found.length != 1 or found.presence is Presence.CONSTANT:
            raise node.error(f"encodingType={name!r} is not a type of one element")
        return found

    def _composite(self, node: Node, semantic_type: str) -> CompositeType:
        is_month_year = semantic_type.lower() == "monthyear"
        members: dict[str, Member] = {}
        end = values = 0
        for child in node.children:
            name = child.name()
            if name in members:
                raise child.error(f"{name!r} is defined twice in composite {node.need('name')!r}")
            if child.tag == "ref":
                since_version(child, self._version)
                kind = self.resolve(child.need("type"), child)
            else:
                kind = self._make(child, is_month_year and name in _MONTH_YEAR_OPTIONAL)
            offset = unsigned(child, "offset", end)
            if offset < end:
                raise child.error(f"offset={offset} overlaps the previous member, which ends at {end}")
            is_first = kind.size > 0 and not any(member.is_first for member in members.values())
            members[name] = Member(name, kind, offset, is_first)
            values += _value_count(kind)
            if values > COMPOSITE_VALUES_MAX:
                raise child.error(f"composite {node.name()!r} has more than {COMPOSITE_VALUES_MAX} values")
            if kind.size:
                end = offset + kind.size
        if not members:
            raise node.error("a <composite> needs at least one member")
        if end > BLOCK_SIZE_MAX:
            raise node.error(
                f"the members of composite {node.name()!r} take {end} bytes, at most {BLOCK_SIZE_MAX} are allowed"
            )
        return CompositeType(node.name(), semantic_type, Presence.REQUIRED, members, end)


def _value_count(kind: EncodingType) -> int:
    """The number of a type's values. A composite has those of its members, which are limited already."""
    if isinstance(kind, CompositeType):
        return sum(_value_count(member.type) for member in kind.members.values())
    return 1
