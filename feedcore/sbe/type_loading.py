"""The <types> of a schema. They may stand in any order, so each is resolved when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from feedcore.documents.xml_document import Node
from feedcore.sbe.attributes import encoding_of, notes_of, presence_of, unsigned, value_of
from feedcore.sbe.primitives import SBE_PRIMITIVES, Number, Primitive
from feedcore.sbe.types import (
    CompositeType,
    EncodingType,
    EnumType,
    Member,
    Notes,
    Presence,
    SetType,
    SimpleType,
    ValidValue,
)

BUILT_IN: dict[str, EncodingType] = {
    kind.name: SimpleType(
        kind.name,
        kind,
        1,
        Presence.REQUIRED,
        kind.null,
        None,
        None,
        None,
        "ascii" if kind.name == "char" else "",
        Notes(),
    )
    for kind in SBE_PRIMITIVES.values()
}
REFERENCES_MAX = (
    32  # types that refer one to another; loading calls itself for each, and Python allows a thousand calls
)
BLOCK_SIZE_MAX = 65_535  # bytes of a message's or an entry's fixed part: what a blockLength of uint16 can say
COMPOSITE_VALUES_MAX = 256  # in all its composites; by <ref>s to composites of <ref>s thirty lines would make a billion
_MONTH_YEAR_OPTIONAL = ("year", "day", "week")  # the standard's MonthYear: these may be null without saying so


class TypeLoader:
    """Resolves encodings by name."""

    def __init__(self, nodes: list[Node], schema_version: int) -> None:
        self._version = schema_version
        self._nodes: dict[str, Node] = {}
        self._resolved: dict[str, EncodingType] = {}
        self._resolving: list[str] = []
        for node in nodes:
            name = node.name()
            if node.tag not in ("type", "composite", "enum", "set"):
                raise node.error(f"<{node.tag}> in <types>: it takes <type>, <composite>, <enum> and <set>")
            if name in self._nodes:
                raise node.error(f"type {name!r} is defined twice, first in line {self._nodes[name].line}")
            self._nodes[name] = node

    def all(self) -> Mapping[str, EncodingType]:
        """Every type the schema defines."""
        return {name: self.resolve(name, node) for name, node in self._nodes.items()}

    def resolve(self, name: str, user: Node) -> EncodingType:
        """The type of this name; `user` is blamed if there is none."""
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
            raise user.error(f"more than {REFERENCES_MAX} types refer one to another: {self._resolving[0]!r} and so on")
        self._resolving.append(name)
        self._resolved[name] = self._make(node)
        self._resolving.pop()
        return self._resolved[name]

    def reference(self, node: Node) -> tuple[EnumType, ValidValue]:
        """What `valueRef` ("Enum.Name") points to."""
        text = node.need("valueRef")
        enum_name, _, value_name = text.partition(".")
        enum = self.resolve(enum_name, node)
        if not isinstance(enum, EnumType) or value_name not in enum.values:
            raise node.error(f"valueRef={text!r}: no such value of an <enum>")
        return enum, enum.values[value_name]

    def _make(self, node: Node, is_month_year_part: bool = False) -> EncodingType:
        if node.tag == "type":
            return self._simple(node, is_month_year_part)
        if node.tag == "enum":
            return self._enum(node)
        if node.tag == "set":
            return self._set(node)
        if node.tag == "composite":
            return self._composite(node)
        raise node.error(f"<{node.tag}> in a composite: it takes <type>, <composite>, <enum>, <set> and <ref>")

    def _simple(self, node: Node, is_month_year_part: bool) -> SimpleType:
        notes = notes_of(node, self._version)
        primitive = _primitive(node)
        given = presence_of(node)
        presence = given or Presence.REQUIRED
        if given is None and is_month_year_part:
            presence = Presence.OPTIONAL
        null = value_of(node, "nullValue", primitive)
        if null is not None and presence is not Presence.OPTIONAL:
            raise node.error(f"nullValue on a type that is {presence.value}: only an optional one has it")
        length = unsigned(node, "length", 1)
        constant = None
        if presence is Presence.CONSTANT:
            constant, length = self._constant(node, primitive, length)
        low, high = value_of(node, "minValue", primitive), value_of(node, "maxValue", primitive)
        if low is not None and high is not None and low > high:
            raise node.error(f"minValue={low} is above maxValue={high}")
        encoding = encoding_of(node, "US-ASCII" if primitive.name == "char" else "")
        chosen = primitive.null if null is None else null
        return SimpleType(node.name(), primitive, length, presence, chosen, low, high, constant, encoding, notes)

    def _constant(self, node: Node, primitive: Primitive, length: int) -> tuple[str | Number, int]:
        """(value, length) of a constant; a text's length follows from the text where it is not given."""
        if "valueRef" in node.attributes:
            enum, value = self.reference(node)
            if not primitive.minimum <= value.value <= primitive.maximum:
                raise node.error(f"{enum.name}.{value.name} does not fit in {primitive.name}")
            return (chr(value.value) if primitive.name == "char" else value.value), 1
        return constant_text(node, primitive, length)

    def _enum(self, node: Node) -> EnumType:
        notes = notes_of(node, self._version)
        encoding = self._scalar_encoding(node)
        primitive = encoding.primitive
        if primitive.is_float:
            raise node.error(f"encodingType is {primitive.name}: an <enum> is of char or an integer")
        values = dict(self._valid_values(node, "validValue", primitive))
        if not values:
            raise node.error("an <enum> has at least one <validValue>")
        by_value: dict[int, ValidValue] = {}
        for child, value in zip(node.all("validValue"), values.values(), strict=True):
            if value.value in by_value:
                raise child.error(f"value {child.text.strip()!r} is {by_value[value.value].name!r} already")
            by_value[value.value] = value
        return EnumType(node.name(), primitive, values, by_value, encoding.presence, encoding.null, notes)

    def _set(self, node: Node) -> SetType:
        notes = notes_of(node, self._version)
        primitive = self._scalar_encoding(node).primitive
        if not primitive.is_unsigned:
            raise node.error(f"encodingType is {primitive.name}: a <set> is of an unsigned integer")
        choices = dict(self._valid_values(node, "choice", SBE_PRIMITIVES["uint8"]))
        by_bit: dict[int, ValidValue] = {}
        for child, choice in zip(node.all("choice"), choices.values(), strict=True):
            if choice.value >= 8 * primitive.size:
                raise child.error(f"bit {choice.value} does not exist in {primitive.name}")
            if choice.value in by_bit:
                raise child.error(f"bit {choice.value} is {by_bit[choice.value].name!r} already")
            by_bit[choice.value] = choice
        return SetType(node.name(), primitive, choices, by_bit, notes)

    def _scalar_encoding(self, node: Node) -> SimpleType:
        name = node.need("encodingType")
        found = self.resolve(name, node)
        if not isinstance(found, SimpleType) or found.length != 1 or found.presence is Presence.CONSTANT:
            raise node.error(f"encodingType={name!r} is no type of one element")
        return found

    def _valid_values(self, node: Node, tag: str, primitive: Primitive) -> Iterator[tuple[str, ValidValue]]:
        seen = set()
        for child in node.children:
            if child.tag != tag:
                raise child.error(f"<{child.tag}> in <{node.tag}>: it takes <{tag}>")
            name = child.label()
            if name in seen:
                raise child.error(f"{name!r} is defined twice in {node.need('name')!r}")
            seen.add(name)
            if not child.text.strip():
                raise child.error(f"<{tag}> {name!r} has no value")
            try:
                value = primitive.parse(child.text)
            except ValueError:
                raise child.error(f"{child.text.strip()!r} is no value of {primitive.name}") from None
            yield name, ValidValue(name, int(value), notes_of(child, self._version))

    def _composite(self, node: Node) -> CompositeType:
        notes = notes_of(node, self._version)
        is_month_year = notes.semantic_type.lower() == "monthyear"
        members: dict[str, Member] = {}
        end = values = 0
        for child in node.children:
            name = child.name()
            if name in members:
                raise child.error(f"{name!r} is defined twice in composite {node.need('name')!r}")
            if child.tag == "ref":
                kind = self.resolve(child.need("type"), child)
            else:
                kind = self._make(child, is_month_year and name in _MONTH_YEAR_OPTIONAL)
            offset = unsigned(child, "offset", end)
            if offset < end:
                raise child.error(f"offset={offset} overlaps the member before, which ends at {end}")
            members[name] = Member(name, kind, offset, notes_of(child, self._version))
            values += _value_count(kind)
            if values > COMPOSITE_VALUES_MAX:
                raise child.error(f"composite {node.name()!r} has more than {COMPOSITE_VALUES_MAX} values")
            if kind.size:
                end = offset + kind.size
        if not members:
            raise node.error("a <composite> has at least one member")
        if end > BLOCK_SIZE_MAX:
            raise node.error(f"the members of composite {node.name()!r} take {end} bytes, at most {BLOCK_SIZE_MAX}")
        return CompositeType(node.name(), members, end, notes)


def _value_count(kind: EncodingType) -> int:
    """Values of a type; of a composite those of its members, which are limited already."""
    if isinstance(kind, CompositeType):
        return sum(_value_count(member.type) for member in kind.members.values())
    return 1


def _primitive(node: Node) -> Primitive:
    wanted = node.need("primitiveType")
    if wanted not in SBE_PRIMITIVES:
        raise node.error(f"unknown primitiveType {wanted!r}; known are {', '.join(SBE_PRIMITIVES)}")
    return SBE_PRIMITIVES[wanted]


def constant_text(node: Node, primitive: Primitive, length: int) -> tuple[str | Number, int]:
    """(value, length) of a constant that an element's text gives."""
    text = node.text.strip()
    if not text:
        raise node.error("presence='constant' needs the value as the element's text")
    if primitive.name == "char":
        if "length" in node.attributes and len(text) > length:
            raise node.error(f"{text!r} is longer than {length}")
        return text, max(length, len(text))
    try:
        return primitive.parse(text), 1
    except ValueError:
        raise node.error(f"{text!r} is no value of {primitive.name}") from None
