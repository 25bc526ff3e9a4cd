"""Converter functions of users: plain Python functions of integers, registered by entry point.

    @converter_function(minimum=0, maximum=100)
    def percent(of, total):
        \"\"\"How much of the total, in percent.\"\"\"
        return 100 * of // total if total > 0 else 0

    # pyproject.toml
    [project.entry-points."tandemfeed.converter_functions"]
    percent = "our_functions:percent"

and in a table `<let name="share" function="percent" of="filled" total="size"/>`. A function takes integers and returns
one. Numba compiles it into the kernel if possible. Otherwise it is called in Python, between two passes over a packet,
with the values of all its messages: one call per value, or one call with arrays if it says `per_packet=True`. The
result is the same either way. If one of its values is null, the result is null, and the function is not called. If the
result is out of range, or the function raises an exception, the message is refused. The result must depend on the
arguments alone, because adapters that compute different results do not stay synchronized.
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

from tandemfeed.adapter.conversion.table.function_use import Checked, Use
from tandemfeed.adapter.conversion.table.functions import FUNCTIONS, Calling, ConverterFunction
from tandemfeed.adapter.conversion.table.values import INT64_MAX, INT64_MIN, ValueType
from tandemfeed.adapter.kernel_cache import compiled
from tandemfeed.feedcore.documents.names import NAME_RULE, is_name

GROUP = "tandemfeed.converter_functions"
TAKEN = ("name", "function", "by", "cell", "reset")  # attributes that any element may have
WHY_SIZE_MAX = 160  # characters of numba's message to show


class BadUserFunction(ValueError):
    """A registered function is unusable; the text says which one and why."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function, and what the loader must know about its result.

    Attributes:
        exponent: the exponent of the decimal result; the arguments are passed as plain integers.
        per_packet: it takes and returns arrays, int64 of shape (messages,).
        version: of anything that its result depends on besides its source.
    """

    python: Callable[..., Any]
    minimum: int
    maximum: int
    exponent: int
    per_packet: bool = False
    version: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of its values, which are attributes in a table."""
        return tuple(inspect.signature(self.python).parameters)

    @property
    def digest(self) -> str:
        """Digest of its source and version; a table whose functions have other digests is a different table."""
        text = f"{textwrap.dedent(inspect.getsource(self.python))}{self.version}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def converter_function(
    *,
    minimum: int = INT64_MIN,
    maximum: int = INT64_MAX - 1,
    exponent: int = 0,
    per_packet: bool = False,
    version: str = "",
) -> Callable[[Callable[..., Any]], UserFunction]:
    """Make a converter function from a Python function of integers.

    Args:
        minimum: the least result; a message with a lower one is refused.
        maximum: the greatest result; a message with a higher one is refused.
        exponent: the exponent of the decimal result.
        per_packet: it is a function of arrays with one element per message: int64 of shape (n,), read-only. It returns
            integers of the same shape; each may depend only on the arguments at the same index.
        version: the version of anything it calls or reads. Adapters with different versions do not accept each other's
            state, as with different sources.
    """

    def decorate(function: Callable[..., Any]) -> UserFunction:
        return UserFunction(function, minimum, maximum, exponent, per_packet, version)

    return decorate


@dataclass(frozen=True, slots=True)
class _Registered:
    """A function known in this process.

    Attributes:
        why: the reason why it is not compiled; empty if it is compiled.
    """

    function: UserFunction
    calling: Calling
    why: str


_registered: dict[str, _Registered] = {}


def register(name: str, function: UserFunction) -> None:
    """Make a function known in this process only; an entry point does so in every process.

    Raises:
        BadUserFunction: the name is in use, or the function cannot be a converter function.
    """
    if name in FUNCTIONS:
        raise BadUserFunction(f"converter function {name!r}: the name is already in use")
    if not is_name(name):
        raise BadUserFunction(f"converter function {name!r} is not a name: {NAME_RULE}")
    _check_arguments(name, function)
    if not INT64_MIN <= function.minimum <= function.maximum < INT64_MAX:
        raise BadUserFunction(f"converter function {name!r}: its range must be within -2**63 and 2**63 - 2")
    why = "it takes arrays" if function.per_packet else _why_not_compiled(name, function)
    calling = Calling.PER_ARRAY if function.per_packet else Calling.PER_VALUE if why else Calling.COMPILED
    if why and not function.arguments:
        raise BadUserFunction(
            f"converter function {name!r} takes no values; only a function that can be compiled may do so"
        )
    _registered[name] = _Registered(function, calling, why)


def _check_arguments(name: str, function: UserFunction) -> None:
    try:
        parameters = inspect.signature(function.python).parameters.values()
        inspect.getsource(function.python)  # its digest is part of every table that uses it
    except (OSError, TypeError, ValueError) as unreadable:
        raise BadUserFunction(f"converter function {name!r}: cannot read its source: {unreadable}") from None
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise BadUserFunction(f"converter function {name!r}: {parameter} is not a single value")
        if not is_name(parameter.name):
            raise BadUserFunction(f"converter function {name!r}: {parameter.name!r} is not a name: {NAME_RULE}")
        if parameter.name in TAKEN:
            raise BadUserFunction(f"converter function {name!r}: {parameter.name!r} is an attribute of every element")


def _why_not_compiled(name: str, function: UserFunction) -> str:
    """Why a function cannot be compiled into a kernel; empty if it can."""
    signature = (types.int64,) * len(function.arguments)
    try:
        found = compiled()(function.python)
        found.compile(signature)
    except Exception as cannot:  # noqa: BLE001  numba raises many exceptions for code it cannot compile
        lines = [line.strip() for line in str(cannot).splitlines()]
        reasons = [line for line in lines if line and not line.startswith(("Failed in", "During:", "File "))]
        return f"numba cannot compile it: {(reasons or [type(cannot).__name__])[0][:WHY_SIZE_MAX]}"
    result = found.overloads[signature].signature.return_type
    if isinstance(result, types.Integer | types.Boolean):
        return ""
    if isinstance(result, types.Optional):
        return "it may return None"
    raise BadUserFunction(f"converter function {name!r} returns {result}, not an integer")


def compiled_user(name: str) -> Any:
    """The compiled function, for generated kernels."""
    return compiled()(_registered[name].function.python)


def known_functions() -> Mapping[str, ConverterFunction]:
    """All converter functions: tandemfeed's own, and users'.

    Raises:
        BadUserFunction: a registered function cannot be used.
    """
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name not in _registered:
            found = entry.load()
            if not isinstance(found, UserFunction):
                raise BadUserFunction(f"{entry.value} is not a @converter_function")
            register(entry.name, found)
    return {**FUNCTIONS, **{name: _as_function(name, known) for name, known in _registered.items()}}


# If a function refuses its values, the message is refused. After a change of state this is no longer possible: then the
# result is null.
REFUSED = {"failed_as": "reason = reason or FUNCTION_FAILED", "beyond_as": "reason = reason or OUT_OF_RANGE"}
NULLED = {"failed_as": "{r} = NULL", "beyond_as": "{r} = NULL"}


def null_instead(checked: Checked) -> Checked:
    """For a use whose arguments depend on state: its result is null where it would refuse the message."""
    return checked._replace(result=checked.result.nullable(), constants=checked.constants | NULLED, fails=False)


def _as_function(name: str, known: _Registered) -> ConverterFunction:
    function = known.function
    result = ValueType(function.minimum, function.maximum, function.exponent)

    def check(use: Use) -> Checked:
        given = [use.number(argument) for argument in function.arguments]
        constants: dict[str, object] = {"low": function.minimum, "high": function.maximum, **REFUSED}
        return Checked(result.nullable(any(each.is_nullable for each in given)), constants, fails=True)

    call = ", ".join(f"{{{argument}}}" for argument in function.arguments)
    in_kernel = (
        f"{{r}}, failed = try_{name}({call})",
        "if failed:",
        "    {failed_as}",
        "elif {r} < {low} or {r} > {high}:",
        "    {beyond_as}",
    )
    answered = ("{r} = answers[2 * ({slot})]", "reason = reason or answers[2 * ({slot}) + 1]")
    return ConverterFunction(
        name,
        inspect.getdoc(function.python) or "a user's function",
        function.arguments,
        (),
        check,
        in_kernel if known.calling is Calling.COMPILED else answered,
        python=function.python,
        source_digest=function.digest,
        calling=known.calling,
        why_called=known.why,
        low=function.minimum,
        high=function.maximum,
    )
