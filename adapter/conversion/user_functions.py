"""Converter functions of users: plain Python over integers, registered by entry point, compiled into the kernel.

    @converter_function(minimum=0, maximum=100)
    def percent(of, total):
        \"\"\"How much of the total, in percent.\"\"\"
        return 100 * of // total if total > 0 else 0

    # pyproject.toml
    [project.entry-points."tandemfeed.converter_functions"]
    percent = "our_functions:percent"

and in a table `<let name="share" function="percent" of="filled" total="size"/>`. A function is given integers and gives
one; a null among its values makes the result null without calling it; a result beyond its range refuses the message. It
must be a function of its arguments alone: adapters that disagree do not stay in step.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numba import types
from numba.core.errors import NumbaError

from adapter.conversion.function_use import Checked, Use
from adapter.conversion.functions import FUNCTIONS, ConverterFunction
from adapter.conversion.values import INT64_MAX, INT64_MIN, ValueType
from adapter.kernel_cache import compiled

GROUP = "tandemfeed.converter_functions"


class BadUserFunction(ValueError):
    """A registered function cannot be used; the text says which and why."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function with what the loader must know of its result.

    Attributes:
        exponent: of the decimal its result is; its arguments come as the integers they are.
    """

    python: Callable[..., int]
    minimum: int
    maximum: int
    exponent: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of its values: attributes in a table."""
        return tuple(inspect.signature(self.python).parameters)

    @property
    def digest(self) -> str:
        """Of its source: another one is another table."""
        return hashlib.sha256(textwrap.dedent(inspect.getsource(self.python)).encode()).hexdigest()[:16]


def converter_function(
    *, minimum: int = INT64_MIN, maximum: int = INT64_MAX - 1, exponent: int = 0
) -> Callable[[Callable[..., int]], UserFunction]:
    """Make a converter function of a Python function of integers."""

    def decorate(function: Callable[..., int]) -> UserFunction:
        return UserFunction(function, minimum, maximum, exponent)

    return decorate


_registered: dict[str, UserFunction] = {}


def register(name: str, function: UserFunction) -> None:
    """Make a function known in this process, as an entry point does in every one.

    Raises:
        BadUserFunction: the name is taken, or numba cannot compile it.
    """
    if name in FUNCTIONS or not name.isidentifier():
        raise BadUserFunction(f"converter function {name!r}: the name is taken, or is no name")
    try:
        compiled()(function.python).compile((types.int64,) * len(function.arguments))
    except NumbaError as cannot:
        raise BadUserFunction(f"converter function {name!r} cannot be compiled into a kernel: {cannot}") from None
    _registered[name] = function


def compiled_user(name: str) -> Any:
    """The compiled function, for generated kernels."""
    return compiled()(_registered[name].python)


def known_functions() -> Mapping[str, ConverterFunction]:
    """All converter functions: tandemfeed's own, and users'.

    Raises:
        BadUserFunction: a registered one cannot be used.
    """
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name not in _registered:
            found = entry.load()
            if not isinstance(found, UserFunction):
                raise BadUserFunction(f"{entry.value}: no @converter_function")
            register(entry.name, found)
    return {**FUNCTIONS, **{name: _as_function(name, function) for name, function in _registered.items()}}


def _as_function(name: str, function: UserFunction) -> ConverterFunction:
    result = ValueType(function.minimum, function.maximum, function.exponent)

    def check(use: Use) -> Checked:
        is_nullable = any(use.number(argument).is_nullable for argument in function.arguments)
        fails = function.minimum > INT64_MIN or function.maximum < INT64_MAX - 1
        constants: dict[str, object] = {"low": function.minimum, "high": function.maximum}
        return Checked(result.nullable(is_nullable), constants, fails=fails)

    call = ", ".join(f"{{{argument}}}" for argument in function.arguments)
    return ConverterFunction(
        name,
        inspect.getdoc(function.python) or "a user's function",
        function.arguments,
        (),
        check,
        (
            f"{{r}} = user_{name}({call})",
            "if {r} < {low} or {r} > {high}:",
            "    reason = reason or OUT_OF_RANGE",
        ),
        python=function.python,
        source_digest=function.digest,
    )
