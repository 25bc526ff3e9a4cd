"""State cells while a table is loaded: which element keeps which cell, by which key, and their columns in the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tandemfeed.adapter.conversion.state.state_kernels import CELLS_MAX
from tandemfeed.adapter.conversion.state.state_store import KeySpace
from tandemfeed.adapter.conversion.table.functions import ConverterFunction
from tandemfeed.adapter.conversion.table.values import NULL
from tandemfeed.feedcore.documents.xml_document import Node


@dataclass(slots=True)
class Cell:
    """A cell by name and key, and the elements that keep it."""

    function: ConverterFunction
    initial: tuple[int, ...]
    is_reset: bool
    keepers: list[tuple[Node, Node]] = field(default_factory=list)  # (<convert>, element)
    is_double: bool | None = None  # None: not known yet


def function_of(node: Node, functions: Mapping[str, ConverterFunction]) -> ConverterFunction:
    """The function that an element names."""
    name = node.need("function")
    if name not in functions:
        raise node.error(f"unknown converter function {name!r}; it must be one of {', '.join(sorted(functions))}")
    return functions[name]


def _cells_of(node: Node, function: ConverterFunction) -> int:
    """How many cells an element has of each of its function's."""
    if "sources" in function.parameters:
        return node.get_int("sources", 1)
    return -(-node.need_int("length") // 8) if function.shape == "kept text" else 1


def cell_name(node: Node) -> str:
    """The name of the cell that an element keeps or reads."""
    return node.attributes.get("cell", f"{node.need('function')}({node.attributes.get('of', '')})")


class Cells:
    """All cells of a table; one element of each message type may keep the same cell."""

    def __init__(self, functions: Mapping[str, ConverterFunction]) -> None:
        self._functions = functions
        self._spaces: dict[str, dict[str, Cell]] = {}
        self._words: dict[str, int] = {}

    def declare(self, convert: Node) -> None:
        """Record the cells that a <convert> keeps."""
        for node in convert.children:
            if node.tag not in ("field", "let", "keep", "data"):
                continue
            function = function_of(node, self._functions)
            if function.keeps_state:
                self._declare(convert, node, function)

    def _declare(self, convert: Node, node: Node, function: ConverterFunction) -> None:
        if "cell" in node.attributes:
            node.name("cell")
        cells = self._spaces.setdefault(" ".join(node.need("by").split()), {})
        reset = node.attributes.get("reset", "never")
        if reset not in ("never", "session"):
            raise node.error(f"reset is {reset!r}; it must be never or session")
        initial = function.cells * _cells_of(node, function)
        name = cell_name(node)
        cell = cells.setdefault(name, Cell(function, initial, reset == "session"))
        if cell.function is not function or cell.initial != initial or cell.is_reset != (reset == "session"):
            raise node.error(
                f"cell {name!r} is already kept by a different function, or with a different reset or sources"
            )
        if any(other is convert for other, _ in cell.keepers):
            raise node.error(
                f"cell {name!r} is kept twice in one <convert>; read it with peek, or give one a different cell="
            )
        cell.keepers.append((convert, node))

    def find(self, node: Node) -> Cell:
        """The cell that a peek reads."""
        cell = self._spaces.get(" ".join(node.need("by").split()), {}).get(node.need("cell"))
        if cell is None:
            raise node.error(f"no element keeps a cell {node.need('cell')!r} by {node.need('by')!r}")
        return cell

    def check_kind(self, node: Node, by: str, *, is_double: bool) -> None:
        """Note whether an element takes a cell for a double; raises if another element did not."""
        name = cell_name(node)
        cell = self._spaces[by][name]
        if cell.is_double not in (None, is_double):
            raise node.error(f"cell {name!r} has a double in one element, and something else in another")
        cell.is_double = is_double

    def space(self, node: Node, by: str, words: int) -> int:
        """The number of the key space; its keys must have the same number of words everywhere."""
        if self._words.setdefault(by, words) != words:
            raise node.error(f"a key by {by!r} has {8 * words} bytes here but {8 * self._words[by]} in another message")
        return list(self._spaces).index(by)

    def columns(self, by: str, name: str) -> tuple[int, ...]:
        """The columns of a cell; the cells that are never reset come first."""
        at = 0
        for is_reset in (False, True):
            for each, cell in self._spaces[by].items():
                if cell.is_reset == is_reset:
                    if each == name:
                        return tuple(range(at, at + len(cell.initial)))
                    at += len(cell.initial)
        raise AssertionError(f"cell {name} was not declared")

    def spaces(self, root: Node, keys_max: int) -> Iterator[KeySpace]:
        """The key spaces, in the order of their numbers."""
        for by, cells in self._spaces.items():
            kept = [value for cell in cells.values() if not cell.is_reset for value in cell.initial]
            reset = [value for cell in cells.values() if cell.is_reset for value in cell.initial]
            initial = [*kept, *reset, *([NULL] if reset else [])]
            if len(initial) > CELLS_MAX:
                raise root.error(f"{len(initial)} cells by {by!r}; at most {CELLS_MAX} are allowed")
            yield KeySpace(by, self._words.get(by, 1), tuple(initial), len(kept) if reset else None, keys_max=keys_max)
