"""How a process may take a call that fails: it continues, or it ends with a sentence and a status."""

from __future__ import annotations

import json

from tests.failing_calls import Injection

TRACEBACK = "Traceback (most recent call last)"


def problems_of_end(status: int | None, log: str, injection: Injection, *, was_asked: bool) -> list[str]:
    """What is wrong with how a process ended.

    Args:
        status: None: it did not end when it was asked to.
        log: its standard error.
        was_asked: it ran until it was asked to end.
    """
    found = []
    if status is None:
        found.append("it did not end")
    elif status < 0:
        found.append(f"signal {-status} ended it")
    elif status == 0 and not was_asked:
        found.append("it ended with status 0, although it was not asked to")
    elif status > 0 and not _sentence(log):
        found.append(f"it ended with status {status} and no sentence")
    if unexpected := _unexpected(log, injection.fault.error):
        found.append(unexpected)
    return [f"{injection.fault}: {each}\n{_tail(log)}" for each in found]


def _sentence(log: str) -> str:
    """The last thing that a process says."""
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _unexpected(log: str, error: int) -> str:
    """An error that nothing in the process expected. A thread may fail of the very error: its process says so, and is
    unhealthy."""
    for line in log.splitlines():
        if line.startswith(TRACEBACK):
            return "it printed a traceback"
        event = _event(line) if line.startswith("{") else {}
        if event.get("failed_thread") and f"[Errno {error}]" not in event.get("exception", ""):
            return f"its thread {event['failed_thread']} failed"
    return ""


def _event(line: str) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(line)
    except ValueError:
        return {}
    return found


def _tail(log: str) -> str:
    return "\n".join(f"    {line[:600]}" for line in log.splitlines()[-12:])
