"""Every binary layout has one definition: offsets, sizes and struct formats are written only where the layout is
defined, and imported from there. A copied number would silently become wrong when the layout changes.

The check reads the syntax trees of the packages. It leaves out `journal`, which defines its own layouts, in
`journal/format/layout.py` and neighbouring modules, and imports no other package of the project.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "feedcore",
    "tables",
    "transport",
    "adapter",
    "admin_server",
    "client_lib",
    "spark_feed",
    "offline",
    "deploy",
    "benchmarks",
)

# Files that define a layout, whether of packets, of their records, or of a third-party format.
DEFINITIONS = {
    "feedcore/wire/layout.py": "makes structs, offsets and dtypes from lists of fields",
    "client_lib/messages/message.py": "structs from a schema's types",
    "feedcore/wire/provisional_commit.py": "a record of the output journal",
    "client_lib/messages/sbe_reading.py": "structs from a schema's types",
    "client_lib/messages/sbe_writing.py": "structs from a schema's types",
    "feedcore/replica/input/decision_log.py": "rows of a table in memory, which never leave the process",
    "adapter/records/saved_state.py": "its record of the output journal",
    "adapter/records/dead_letter_record.py": "its record of the dead-letter journal",
    "adapter/conversion/state/state_store.py": "snapshots of conversion state",
    "adapter/conversion/kernel/kernel_tables.py": "digest of a table's words",
    "adapter/conversion/formats/captures/capture.py": "Ethernet, IP and UDP",
    "adapter/conversion/formats/captures/capture_file.py": "pcap and pcapng",
    "adapter/conversion/formats/files/dbn.py": "Databento's files",
    "adapter/conversion/formats/packets/iex_tp.py": "IEX-TP",
    "adapter/conversion/formats/packets/mdp3.py": "CME MDP 3.0",
    "adapter/conversion/formats/packets/moldudp64.py": "MoldUDP64",
    "spark_feed/journaling/records.py": "records of the source journal",
    "spark_feed/contributions/records.py": "decisions of a contribution gateway",
    "spark_feed/sending/publication.py": "its log, beside the source journal",
    "transport/calls/notices/layout.py": "death notices and grant notices",
    "transport/calls/server_proofs.py": "statements that the admin server signs",
    "transport/unicast/wire.py": "the topic in front of a unicast datagram",
    "transport/unicast/listener.py": "the kernel's structs sock_filter and sock_fprog",
    "transport/scheduling.py": "the kernel's struct sched_attr",
    "deploy/isolation.py": "the kernel's struct ifreq and capability sets",
    "benchmarks/conversion.py": "ITCH messages",
    "benchmarks/captures/material.py": "the headers of its captures",
    "benchmarks/journal_baselines.py": "keys of the databases used for comparison",
    "benchmarks/forwarder.py": "a count shared by two processes",
}
BYTES_NAMES = {
    "datagram",
    "packet",
    "payload",
    "header",
    "head",
    "frame",
    "frames",
    "record",
    "body",
    "data",
    "raw",
    "view",
}
STRUCT_CALLS = {"Struct", "pack", "unpack", "pack_into", "unpack_from", "iter_unpack", "calcsize"}
KERNEL_OFFSET = re.compile(r"(?:load|store)_\w+\((?:datagram|out)(?:, (?:position|cursor) \+ |, )[1-9]")


def literals_in(source: str) -> Iterator[tuple[int, str]]:
    """(line, description) of each literal that defines a binary layout."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Subscript) and _name(node.value) in BYTES_NAMES:
            bounds = [node.slice.lower, node.slice.upper] if isinstance(node.slice, ast.Slice) else []
            if any(bound is not None and _has_number(bound) for bound in bounds):
                yield node.lineno, f"a slice of {_name(node.value)} at a literal offset"
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "offsets" and _has_number(value):
                    yield value.lineno, "a dtype with literal offsets"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and KERNEL_OFFSET.search(node.value):
            yield node.lineno, "kernel source with a literal offset"


def _of_call(call: ast.Call) -> Iterator[tuple[int, str]]:
    name = _name(call.func)
    if name not in STRUCT_CALLS:
        return
    is_of_module = isinstance(call.func, ast.Attribute) and _name(call.func.value) == "struct"
    if (is_of_module or name == "Struct") and call.args:
        if isinstance(call.args[0], ast.Constant | ast.JoinedStr | ast.BinOp):
            yield call.lineno, f"{name} with a literal format"
    elif name in ("pack_into", "unpack_from") and any(_has_number(each) for each in call.args[1:2]):
        yield call.lineno, f"{name} at a literal offset"


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _has_number(node: ast.expr) -> bool:
    """True if the expression is a number other than 0, or adds or subtracts one."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) and not isinstance(node.value, bool) and node.value != 0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _has_number(node.left) or _has_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _has_number(node.operand)
    return isinstance(node, ast.List | ast.Tuple) and any(map(_has_number, node.elts))


@cache
def _found() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for line, what in literals_in(path.read_text()):
                found.setdefault(path.relative_to(ROOT).as_posix(), []).append(f"line {line}: {what}")
    return found


def test_offsets_and_struct_formats_are_written_only_where_layouts_are_defined() -> None:
    wrong = {path: lines for path, lines in _found().items() if path not in DEFINITIONS}
    assert not wrong, "import them from the module that defines the layout; for packets, from feedcore.wire"


@pytest.mark.parametrize("path", sorted(DEFINITIONS))
def test_every_file_in_the_list_defines_a_layout(path: str) -> None:
    assert path in _found(), f"{path} no longer contains such a literal; remove it from the list"


@pytest.mark.parametrize(
    "source",
    [
        'HEADER = struct.Struct("<IBB")',
        'HEADER = Struct("<IBB")',
        'struct.pack(f"<{count}H", *values)',
        "HEADER.unpack_from(datagram, 24)",
        "HEADER.pack_into(out, start + 8, 1)",
        "packet.datagram[32:]",
        "record[:4] != MAGIC",
        "frame[offset + 6 : offset + 8]",
        "payload[-16:]",
        'np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [0, 24]})',
        'KERNEL = "session = load_u32(datagram, 12)"',
        'line = f"store_16(out, cursor + 2, {value})"',
    ],
)
def test_a_literal_that_defines_a_layout_is_found(source: str) -> None:
    assert list(literals_in(source))


@pytest.mark.parametrize(
    "source",
    [
        "HEADER = SOURCE_LAYOUT.struct",
        "HEADER.unpack_from(datagram)",
        'HEADER.unpack_from(datagram, SOURCE_LAYOUT.offsets["session"])',
        "HEADER.unpack_from(record, PACKET_HEAD.size)",
        "packet.datagram[SOURCE_HEADER_SIZE:]",
        "frame[offset : offset + length]",
        "names[1:]",
        'np.dtype({"names": ["a"], "formats": ["u1"], "offsets": [0, HEAD.size]})',
    ],
)
def test_an_imported_or_computed_layout_is_not_reported(source: str) -> None:
    assert not list(literals_in(source))
