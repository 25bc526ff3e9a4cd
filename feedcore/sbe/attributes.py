"""Attributes of schema elements: parses SBE's attributes and refuses misspelt ones."""

from __future__ import annotations

import codecs
from difflib import get_close_matches
from functools import lru_cache

from tandemfeed.feedcore.documents.primitive_types import Number, Primitive
from tandemfeed.feedcore.documents.xml_document import ATTRIBUTE_NAMES_MAX, Node
from tandemfeed.feedcore.sbe.types import Presence

_KNOWN = {
    *("name", "id", "type", "description", "semanticType", "sinceVersion", "deprecated", "presence", "nullValue"),
    *("minValue", "maxValue", "length", "offset", "primitiveType", "encodingType", "characterEncoding", "valueRef"),
    *("blockLength", "dimensionType", "byteOrder", "version", "package", "semanticVersion", "headerType", "epoch"),
    *("timeUnit", "href"),
}


def check_spelling(node: Node) -> None:
    """Refuse an attribute that is nearly one of SBE's: `presense` must not silently make a field required.

    Other attributes are ignored, because exchanges add their own.
    """
    for name in node.attributes:
        if ":" not in name and name not in _KNOWN:
            close = _closest(name)
            if close:
                raise node.error(f"<{node.tag}> has no attribute {name!r}; did you mean {close!r}")


@lru_cache(ATTRIBUTE_NAMES_MAX)  # thousands of elements have an exchange's own attributes
def _closest(name: str) -> str | None:
    """The known attribute that a name resembles."""
    return next(iter(get_close_matches(name, _KNOWN, 1, 0.8)), None)


def since_version(node: Node, schema_version: int) -> int:
    """The version that added an element. Checks the spelling of its attributes.

    Raises:
        DocumentError: the version is above the schema's, or an attribute is misspelt.
    """
    check_spelling(node)
    for name in ("sinceVersion", "deprecated"):
        version = unsigned(node, name, 0)
        if version > schema_version:
            raise node.error(f"{name}={version} is above the schema's version {schema_version}")
    return unsigned(node, "sinceVersion", 0)


def unsigned(node: Node, name: str, default: int) -> int:
    """A non-negative integer attribute."""
    value = node.get_int(name, default)
    if value < 0:
        raise node.error(f"{name}={value} is negative")
    return value


def presence_of(node: Node) -> Presence | None:
    """The presence attribute; None if it is missing."""
    text = node.attributes.get("presence")
    try:
        return None if text is None else Presence(text)
    except ValueError:
        raise node.error(f"presence={text!r} is not one of required, optional, constant") from None


def value_of(node: Node, name: str, primitive: Primitive) -> Number | None:
    """minValue, maxValue or nullValue in the primitive's range; None if it is missing."""
    if name not in node.attributes:
        return None
    return parsed(node, primitive, node.attributes[name], f"{name}=")


def parsed(node: Node, primitive: Primitive, text: str, prefix: str = "") -> Number:
    """A text of an element as a value of the primitive; an error begins with `prefix`."""
    try:
        return primitive.parse(text)
    except ValueError:
        raise node.error(f"{prefix}{text.strip()!r} is not a value of {primitive.name}") from None


def encoding_of(node: Node, default: str) -> str:
    """characterEncoding as Python's codec name; empty for octets."""
    text = node.attributes.get("characterEncoding", default)
    if not text:
        return ""
    try:
        return codecs.lookup(text).name
    except LookupError:
        raise node.error(f"characterEncoding={text!r} is unknown") from None
