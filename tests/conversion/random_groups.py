"""Random groups and variable data of output messages. They grow element by element, like their tables."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tandemfeed.feedcore.documents.source_layout import SourceGroup

Lines = list["str | Grown"]


class Grown:
    """A <group> under construction, in a table or in a message model."""

    def __init__(self, head: str, *lines: str) -> None:
        self.head = head
        self.lines: Lines = list(lines)

    def __str__(self) -> str:
        return f"{self.head}{''.join(map(str, self.lines))}</group>\n"


class GroupGrower:
    """Grows the groups of one output message.

    Args:
        attempt: appends an element to lines, and removes it if the loader refuses it.
        element: returns a random <let> that uses the given names and has a new name.
        types: the types of the message model.
    """

    def __init__(
        self,
        random: Random,
        groups: list[SourceGroup],
        attempt: Callable[[str | Grown, Lines], bool],
        element: Callable[[Random, list[str], str], str],
        types: list[str],
    ) -> None:
        self._random, self._groups, self._attempt = random, groups, attempt
        self._element, self._types = element, types
        self._count = 0

    def grow(self, convert: Lines, output: Lines, names: list[str], depth: int = 0) -> None:
        """Add a group to the lines of a table and of its model, if the loader accepts it."""
        random, number = self._random, self._count
        self._count += 1
        head, own = self._head(f"x{number}", names)
        dimension = random.choice(["", "", ' dimensionType="few"'])
        model = Grown(
            f'<group name="x{number}" id="{80 + number}"{dimension}>', '<field name="first" id="1" type="Ruint8"/>'
        )
        table = Grown(head, '<field name="first" function="copy" of="zero"/>')
        output.append(model)
        if not self._attempt(table, convert):
            if random.random() < 0.5:  # otherwise the table does not name the group
                output.pop()
            return
        known = [*own, *own, *names]
        for place in range(random.randint(0, 5)):
            name = f"x{number}_{place}"
            if random.random() < 0.3:
                how = random.choice(["above", "isNot", "below"])
                self._attempt(f'<when of="{random.choice(known)}" {how}="{random.choice([0, 1, 2])}"/>', table.lines)
            element = self._element(random, known, name)
            if "index=" in head and random.random() < 0.3:
                side, by = random.choice(["bid", "ask"]), random.choice(names)
                element = (
                    f'<let name="{name}" function="book_{random.choice(["price", "size", "orders"])}" book="book" '
                    f'side="{side}" level="{own[0]}" by="{by}"/>'
                )
            if self._attempt(element, table.lines):
                known.append(name)
                self._field(name, table.lines, model.lines)
        if own and random.random() < 0.5:
            self._field(random.choice(own), table.lines, model.lines)
        if depth < 2 and random.random() < 0.4:
            self.grow(table.lines, model.lines, known, depth + 1)
        self.data(table.lines, model.lines, known)

    def _head(self, name: str, names: list[str]) -> tuple[str, list[str]]:
        """(the <group>, the names that exist only in it)."""
        random = self._random
        if self._groups and random.random() < 0.6:
            group = random.choice(self._groups)
            return f'<group name="{name}" of="{group.name}">', [*group.fields, *group.data]
        if random.random() < 0.5:
            return f'<group name="{name}" count="{random.choice([1, 2, 3, 7])}" index="i{name}">', [f"i{name}"]
        by, side = random.choice(names), random.choice(["bid", "ask"])
        return f'<group name="{name}" levels="3" index="i{name}" book="book" side="{side}" by="{by}">', [f"i{name}"]

    def _field(self, name: str, convert: Lines, output: Lines) -> None:
        for kind in self._random.sample(self._types, len(self._types)):
            output.append(f'<field name="f{name}" id="5" type="{kind}"/>')
            if self._attempt(f'<field name="f{name}" function="copy" of="{name}"/>', convert):
                return
            output.pop()

    def data(self, convert: Lines, output: Lines, names: list[str]) -> None:
        """Add variable data, after all groups."""
        for place, name in enumerate(self._random.sample(names, min(len(names), self._random.choice([0, 1, 3])))):
            output.append(f'<data name="data{place}" id="{70 + place}" type="text"/>')
            if self._attempt(f'<data name="data{place}" function="copy" of="{name}"/>', convert):
                continue
            if self._random.random() < 0.5:
                output.pop()
