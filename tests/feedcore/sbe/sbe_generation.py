"""Generated message schemas, and values of their messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tandemfeed.client_lib.messages.sbe_reading import Unlisted
from tandemfeed.feedcore.sbe import Schema, load_schema
from tandemfeed.feedcore.sbe.messages import Block, VarData
from tandemfeed.feedcore.sbe.types import CompositeType, EncodingType, EnumType, Presence, SetType, SimpleType
from tests.feedcore.sbe.sbe_material import COUNTING_HEADER, HEADER, schema_text

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
PRESENCES = ['presence="required"', 'presence="optional"', ""]
# Every kind of encoding that the standard has; fields draw from them.
TYPES = (
    "".join(
        f'<type name="{kind}Plain" primitiveType="{kind}"/>'
        f'<type name="{kind}Null" primitiveType="{kind}" presence="optional" nullValue="7"/>'
        f'<type name="{kind}Own" primitiveType="{kind}" presence="optional"/>'
        f'<type name="{kind}Range" primitiveType="{kind}" minValue="3" maxValue="99"/>'
        f'<type name="{kind}Array" primitiveType="{kind}" length="3"/>'
        for kind in INTEGERS
    )
    + """
<type name="floatPlain" primitiveType="float"/><type name="doubleNull" primitiveType="double" presence="optional"/>
<type name="textOne" primitiveType="char"/><type name="textFive" primitiveType="char" length="5"/>
<type name="textLatin" primitiveType="char" length="9" characterEncoding="ISO-8859-1"/>
<type name="fixed" primitiveType="char" presence="constant">XEUR</type>
<type name="fixedNumber" primitiveType="int16" presence="constant">-5</type>
<enum name="letters" encodingType="char"><validValue name="Buy">B</validValue>
  <validValue name="Sell">S</validValue></enum>
<enum name="numbers" encodingType="uint16"><validValue name="One">1</validValue>
  <validValue name="Big">65534</validValue></enum>
<enum name="nullable" encodingType="uint8Own"><validValue name="Zero">0</validValue></enum>
<set name="flags" encodingType="uint8">
  <choice name="a">0</choice><choice name="b">3</choice><choice name="c">7</choice></set>
<set name="wide" encodingType="uint64"><choice name="low">0</choice><choice name="high">63</choice></set>
<composite name="decimal"><type name="mantissa" primitiveType="int64" presence="optional"/>
  <type name="exponent" primitiveType="int8" presence="constant">-4</type></composite>
<composite name="floating">
  <type name="mantissa" primitiveType="int32"/><type name="exponent" primitiveType="int8"/></composite>
<composite name="padded">
  <type name="first" primitiveType="uint8"/><type name="second" primitiveType="uint32" offset="4"/>
  <enum name="side" encodingType="char"><validValue name="Buy">B</validValue></enum></composite>
<composite name="nested"><ref name="inner" type="padded" offset="2"/><ref name="flags" type="flags"/>
  <composite name="deep"><type name="x" primitiveType="int16"/><type name="y" primitiveType="int16"/></composite>
  <type name="venue" primitiveType="char" presence="constant">XNAS</type></composite>
<composite name="bytes8"><type name="length" primitiveType="uint8"/>
  <type name="varData" primitiveType="uint8" length="0"/></composite>
<composite name="text16"><type name="length" primitiveType="uint16" maxValue="300"/>
  <type name="varData" primitiveType="uint8" length="0" characterEncoding="UTF-8"/></composite>
<composite name="tinyGroup"><type name="blockLength" primitiveType="uint8"/>
  <type name="numInGroup" primitiveType="uint8" offset="5"/></composite>"""
)
NAMES = [
    *(f"{kind}{suffix}" for kind in INTEGERS for suffix in ("Plain", "Null", "Own", "Range", "Array")),
    *("floatPlain", "doubleNull", "textOne", "textFive", "textLatin", "fixed", "fixedNumber", "letters", "numbers"),
    *("nullable", "flags", "wide", "decimal", "floating", "padded", "nested", "int32", "char", "double"),
]


@dataclass(frozen=True)
class Generated:
    """A schema with one message `M`, and values for it."""

    xml: bytes
    schema: Schema = field(repr=False)
    values: dict[str, Any]


@st.composite
def _level(draw: st.DrawFn, depth: int, is_fixed: bool) -> str:
    parts = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(NAMES))
        can_be_optional = not kind.startswith("fixed") and kind != "flags"
        presence = ' presence="optional"' if can_be_optional and draw(st.booleans()) else ""
        parts.append(f'<field name="f{number}" id="{number}" type="{kind}"{presence}/>')
    if not is_fixed:
        for number in range(draw(st.integers(0, 2)) if depth < 2 else 0):
            kind = draw(st.sampled_from(["groupSizeEncoding", "tinyGroup"]))
            inner = draw(_level(depth + 1, False))
            parts.append(f'<group name="g{number}" id="{number}" dimensionType="{kind}">{inner}</group>')
        for number in range(draw(st.integers(0, 2))):
            parts.append(f'<data name="d{number}" id="{number}" type="{draw(st.sampled_from(["bytes8", "text16"]))}"/>')
    return "".join(parts)


@st.composite
def generated(draw: st.DrawFn, is_fixed: bool = False, is_output: bool = False) -> Generated:
    """A schema and values; that of an output is little-endian and has the standard header."""
    order = "littleEndian" if is_output else draw(st.sampled_from(["littleEndian", "bigEndian"]))
    header = HEADER if is_fixed or is_output else draw(st.sampled_from([HEADER, COUNTING_HEADER]))
    message = f'<message name="M" id="9">{draw(_level(0, is_fixed))}</message>'
    xml = schema_text(TYPES, message, 2, order, header)
    schema = load_schema(xml)
    return Generated(xml, schema, draw(_block_values(schema.messages["M"])))


@st.composite
def _block_values(draw: st.DrawFn, block: Block) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in block.fields.values():
        if part.presence is Presence.CONSTANT:
            values[part.name] = part.constant
        else:
            values[part.name] = draw(_values(part.type, part.presence is Presence.OPTIONAL))
    for group in block.groups.values():
        values[group.name] = draw(st.lists(_block_values(group), max_size=3))
    for data in block.data.values():
        values[data.name] = draw(_data(data))
    return values


def _data(data: VarData) -> st.SearchStrategy[Any]:
    if data.character_encoding:
        return st.text(max_size=20)
    return st.binary(max_size=min(30, data.maximum))


def _values(kind: EncodingType, is_optional: bool) -> st.SearchStrategy[Any]:
    if isinstance(kind, SimpleType):
        return _simple(kind, is_optional)
    if isinstance(kind, EnumType):
        null = st.none() if is_optional or kind.presence is Presence.OPTIONAL else st.nothing()
        unlisted = st.integers(1, 200).filter(lambda value: value not in kind.values.values() and value != kind.null)
        return st.one_of(st.sampled_from(list(kind.values)), unlisted.map(Unlisted), null)
    if isinstance(kind, SetType):
        bits = [bit for bit in range(8 * kind.primitive.size) if bit not in kind.choices.values()]
        return st.frozensets(st.sampled_from([*kind.choices, *bits]))
    assert isinstance(kind, CompositeType)
    return _composite(kind, is_optional)


def _composite(kind: CompositeType, is_optional: bool) -> st.SearchStrategy[Any]:
    members = {}
    first = next(member for member in kind.members.values() if member.type.size)
    for member in kind.members.values():
        part = member.type
        strategy = _values(part, is_optional and member is first)
        members[member.name] = strategy.filter(lambda value: value is not None) if member is first else strategy
    whole = st.fixed_dictionaries(members)
    can_be_null = is_optional or (isinstance(first.type, SimpleType) and first.type.presence is Presence.OPTIONAL)
    return st.one_of(st.none(), whole) if can_be_null else whole


def _simple(kind: SimpleType, is_optional: bool) -> st.SearchStrategy[Any]:
    if kind.presence is Presence.CONSTANT:
        return st.just(kind.constant)
    primitive = kind.primitive
    null = st.none() if is_optional or kind.presence is Presence.OPTIONAL else st.nothing()
    if primitive.name == "char":
        top = 255 if "8859" in kind.character_encoding else 126
        text = st.text(st.characters(min_codepoint=33, max_codepoint=top), min_size=1, max_size=kind.length)
        return st.one_of(text, null)
    if primitive.is_float:
        width = 8 * primitive.size
        return st.one_of(st.floats(width=width, allow_nan=False), null)  # type: ignore[arg-type]
    low = primitive.minimum if kind.minimum is None else kind.minimum
    high = primitive.maximum if kind.maximum is None else kind.maximum
    numbers = st.integers(int(low), int(high))
    if kind.length > 1 and primitive.name == "uint8":
        return st.binary(min_size=kind.length, max_size=kind.length)
    if kind.length > 1:
        return st.lists(numbers, min_size=kind.length, max_size=kind.length)
    return st.one_of(numbers.filter(lambda value: value != kind.null), null)
