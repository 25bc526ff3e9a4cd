"""Threads are started, files written durably, signals handled and ZeroMQ contexts made in one module each of `runtime`.

A thread that was started elsewhere may die without a trace, a file that was written elsewhere may be gone after a power
failure, a handler that does more than to wake may stop the process for ever, and so may a context that is collected as
garbage. So all of them are refused in every package. The lists name the modules that do not follow a rule yet: an entry
whose module follows it must be removed, so that they only become shorter.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.test_import_directions import PACKAGES, ROOT

THREADS, DURABLE = "runtime/threads.py", "runtime/durable.py"
SIGNALS, ZEROMQ = "runtime/signals.py", "runtime/zeromq.py"

# Modules that still start threads by themselves.
THREADS_TO_MOVE: set[str] = set()

# Modules that still flush, replace or rename files by themselves.
WRITES_TO_MOVE: set[str] = set()

# Modules that write files themselves for good, and why.
WRITES_ELSEWHERE = {
    "benchmarks/journal_baselines.py": "measures what a write and a flush cost without this project's code",
    "journal/compiled/private_cache.py": "a cache of compiled code, which is compiled again if it is missing",
    "spark_feed/numbering/tasks/running.py": "tasks hand blocks over in memory, and are done again after a crash",
    "spark_feed/numbering/driver/class_archive.py": "a cache of Spark's classes, which is made again if it is missing",
}

# Modules that still handle signals by themselves.
HANDLERS_TO_MOVE: set[str] = set()

# Modules whose ZeroMQ contexts still depend on pyzmq's finaliser.
CONTEXTS_TO_MOVE: set[str] = set()

OS_CALLS = {"fsync", "fdatasync", "sync", "replace", "rename", "renames", "link"}
NOT_PATHS = {"key_ring"}  # objects whose `replace` has nothing to do with files


def calls_and_bases(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.Call | None, int]]:
    """Everything that is called, with the call, and every base class; with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.func, node, node.lineno
        elif isinstance(node, ast.ClassDef):
            yield from ((base, None, base.lineno) for base in node.bases)


def dotted(node: ast.expr) -> str:
    """`a.b.c` as text; "?" stands for what is not a name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def starts_of_threads(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Threads that are made, and classes of threads."""
    for what, _, line in calls_and_bases(tree):
        if dotted(what) in ("threading.Thread", "Thread", "threading.Timer", "Timer", "_thread.start_new_thread"):
            yield dotted(what), line


def durable_writes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Flushes of files and maps, and files that get another name."""
    for what, call, line in calls_and_bases(tree):
        if call is None or not isinstance(what, ast.Attribute):
            continue
        owner = dotted(what.value)
        last = owner.rpartition(".")[2]
        is_one_argument = len(call.args) == 1 and not call.keywords and last not in NOT_PATHS
        if (
            (owner == "os" and what.attr in OS_CALLS)
            or (what.attr == "flush" and "map" in last)
            or (owner != "os" and what.attr in ("replace", "rename", "hardlink_to") and is_one_argument)
            or (owner == "shutil" and what.attr == "move")
        ):
            yield f"{owner}.{what.attr}", line


def signal_handlers(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Functions that handle signals; a signal may be ignored, or have its usual effect."""
    for what, call, line in calls_and_bases(tree):
        if call is not None and dotted(what) in ("signal.signal", "signal.set_wakeup_fd", "signal.sigwait"):
            handler = dotted(call.args[-1]) if call.args else "?"
            if handler not in ("signal.SIG_IGN", "signal.SIG_DFL"):
                yield dotted(what), line


def contexts(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """pyzmq's own contexts."""
    for what, call, line in calls_and_bases(tree):
        if call is not None and dotted(what) in ("zmq.Context", "zmq.Context.instance"):
            yield dotted(what), line


RULES: list[tuple[Callable[[ast.Module], Iterator[tuple[str, int]]], str, set[str], set[str]]] = [
    (starts_of_threads, THREADS, THREADS_TO_MOVE, set()),
    (durable_writes, DURABLE, WRITES_TO_MOVE, set(WRITES_ELSEWHERE)),
    (signal_handlers, SIGNALS, HANDLERS_TO_MOVE, set()),
    (contexts, ZEROMQ, CONTEXTS_TO_MOVE, set()),
]
IDS = ["threads", "durable writes", "signal handlers", "contexts"]


def modules_with(rule: Callable[[ast.Module], Iterator[tuple[str, int]]], home: str) -> dict[str, list[str]]:
    """The modules of all packages, except `home`, in which the rule finds something, and what."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name != home and (places := list(rule(ast.parse(path.read_text())))):
                found[name] = [f"{name}:{line} {what}" for what, line in places]
    return found


@pytest.mark.parametrize(("rule", "home", "to_move", "elsewhere"), RULES, ids=IDS)
def test_only_one_module_does_it(
    rule: Callable[[ast.Module], Iterator[tuple[str, int]]], home: str, to_move: set[str], elsewhere: set[str]
) -> None:
    found = modules_with(rule, home)
    wrong = [line for name, lines in found.items() if name not in to_move | elsewhere for line in lines]
    assert not wrong, f"use {home}"


@pytest.mark.parametrize(("rule", "home", "to_move", "elsewhere"), RULES, ids=IDS)
def test_a_module_that_follows_the_rule_is_not_listed_any_more(
    rule: Callable[[ast.Module], Iterator[tuple[str, int]]], home: str, to_move: set[str], elsewhere: set[str]
) -> None:
    listed = to_move | elsewhere
    assert not listed - modules_with(rule, home).keys(), "remove these entries"


SAMPLES = [
    ("import threading\nthreading.Thread(target=print)", starts_of_threads),
    ("class Keeper(threading.Thread): pass", starts_of_threads),
    ("class Keeper(Thread): pass", starts_of_threads),
    ("threading.Timer(1, print)", starts_of_threads),
    ("threading.current_thread()", None),
    ("def f(thread: threading.Thread) -> None: ...", None),
    ("os.fsync(3)", durable_writes),
    ("os.replace(a, b)", durable_writes),
    ("draft.replace(path)", durable_writes),
    ("draft.with_suffix('.x').rename(path)", durable_writes),
    ("self._map.flush()", durable_writes),
    ("'text'.replace('a', 'b')", None),
    ("at.replace(tzinfo=UTC)", None),
    ("sys.stdout.flush()", None),
    ("signal.signal(number, self._on_signal)", signal_handlers),
    ("signal.set_wakeup_fd(3)", signal_handlers),
    ("signal.signal(signal.SIGINT, signal.SIG_IGN)", None),
    ("context: zmq.Context[Any] = zmq.Context()", contexts),
    ("zmq.Context.instance()", contexts),
    ("def receive(context: zmq.Context[Any]) -> None: ...", None),
]


@pytest.mark.parametrize(("source", "finder"), SAMPLES)
def test_the_rules_find_what_they_are_for(source: str, finder: Callable[[ast.Module], object] | None) -> None:
    tree = ast.parse(source)
    assert [rule for rule, *_ in RULES if list(rule(tree))] == ([] if finder is None else [finder])
