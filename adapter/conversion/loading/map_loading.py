"""Loads the <map>s of a converter table: entries written in the table, and reference tables in CSV files."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from tandemfeed.adapter.conversion.table.function_use import ValueMap
from tandemfeed.feedcore.documents.xml_document import Node

TEXT_SIZE_MAX = 64  # of a key and of a value: eight machine words, as for a key of state
BLANKS = b" \0"
NUMBER_MAX = (1 << 63) - 2  # one less than the engine's null


def load_maps(root: Node, folder: Path) -> dict[str, ValueMap]:
    """Load all <map>s of a table; the result is by name.

    Args:
        folder: the folder that the files named in the table are relative to.
    """
    maps: dict[str, ValueMap] = {}
    for node in root.all("map"):
        node.only("name", "default", "file", "from", "to", "keys", "values")
        name = node.name()
        if name in maps:
            raise node.error(f"map {name!r} is defined twice")
        rows = _from_file(node, folder) if "file" in node.attributes else _written_out(node)
        maps[name] = _make_map(node, name, rows)
    return maps


Row = tuple[str, str, str]  # key, value, position in the document or file for error messages


def _written_out(node: Node) -> list[Row]:
    rows = []
    for entry in node.children:
        if entry.tag != "entry":
            raise entry.error(f"<{entry.tag}> is not allowed in <map>; it takes <entry>")
        entry.only("from", "to")
        rows.append((entry.need("from"), entry.need("to"), f"line {entry.line}"))
    return rows


def _from_file(node: Node, folder: Path) -> list[Row]:
    path = folder / node.need("file")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise node.error(f"cannot read {path}: {unreadable}") from None
    table = csv.DictReader(lines)
    try:
        return list(_rows(node, table, path))
    except csv.Error as malformed:
        raise node.error(f"{path}:{table.line_num}: not CSV: {malformed}") from None


def _rows(node: Node, table: csv.DictReader[str], path: Path) -> Iterator[Row]:
    """The values of the two columns that a <map> names."""
    for attribute in ("from", "to"):
        if node.need(attribute) not in (table.fieldnames or ()):
            raise node.error(f"{path} has no column {node.need(attribute)!r}")
    for row in table:
        key, value, where = row[node.need("from")], row[node.need("to")], f"{path}:{table.line_num}"
        if key is None or value is None:
            raise node.error(f"{where}: fewer columns than the header has")
        yield key, value, where


def _kind(node: Node, attribute: str, texts: list[str]) -> bool:
    """True for text: as the attribute says; without the attribute, if any text is not an integer."""
    given = node.attributes.get(attribute)
    if given not in (None, "text", "number"):
        raise node.error(f"{attribute} is {given!r}; it must be text or number")
    return given == "text" if given else any(not text.lstrip("-").isdigit() for text in texts)


def _value(node: Node, text: str, is_text: bool, where: str) -> int | bytes:
    if is_text:
        data = text.encode()
        if not 0 < len(data) <= TEXT_SIZE_MAX:
            raise node.error(f"{where}: {text!r} has {len(data)} bytes; 1 to {TEXT_SIZE_MAX} are allowed")
        return data
    try:
        value = int(text)
    except ValueError:
        raise node.error(f"{where}: {text!r} is not an integer") from None
    if abs(value) > NUMBER_MAX:
        raise node.error(f"{where}: {text} has more than 63 bits")
    return value


def _make_map(node: Node, name: str, rows: list[Row]) -> ValueMap:
    if not rows:
        raise node.error(f"map {name!r} is empty")
    has_text_keys = _kind(node, "keys", [row[0] for row in rows])
    default = node.attributes.get("default")
    has_text_values = _kind(node, "values", [*(row[1] for row in rows), *([default] if default is not None else [])])
    entries: dict[int | bytes, int | bytes] = {}
    for key_text, value_text, where in rows:
        key = _value(node, key_text, has_text_keys, where)
        if isinstance(key, bytes):  # as when a field is looked up: without trailing blanks; empty if blank
            key = key.rstrip(BLANKS)
        if key in entries:
            raise node.error(f"{where}: {key_text!r} is mapped twice")
        entries[key] = _value(node, value_text, has_text_values, where)
    other = None if default is None else _value(node, default, has_text_values, "default")
    return ValueMap(name, entries, other, node.line)
