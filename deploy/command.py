"""`tandemfeed NAME …`: finds the sub-command NAME among the entry points and runs it. Every sub-command belongs to its
component; only the one that runs is imported."""

from __future__ import annotations

import ctypes
import difflib
import importlib.metadata
import os
import signal
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

GROUP = "tandemfeed.commands"
LEASH_VARIABLE = "TANDEMFEED_LEASH"  # set: this process is to die with the one that started it
NICE_VARIABLE = "TANDEMFEED_NICE"  # set: this process yields the processor to the others of its cluster
HOST_VARIABLE = "TANDEMFEED_HOST"  # set: path of the network namespace that this process belongs in
DISK_VARIABLE = "TANDEMFEED_DISK"  # set: SIZE:FOLDER, a folder that is to be a small disk of this process's own
PR_SET_PDEATHSIG = 1
SUMMARIES = {
    "admin-server": "run the stream administration server",
    "admin": "ask it: feeds, adapters, epochs",
    "adapter": "run a feed adapter, active or backup",
    "convert": "check, explain, compile and try out a conversion; its dead letters",
    "source-job": "number a recording into the source journal (Spark)",
    "source-gateway": "multicast the source journal and fill adapters' gaps",
    "ticks": "make recordings: generate or ingest",
    "subscribe": "follow a feed: live view, JSON lines or messages",
    "journal": "read, check and look after a journal",
    "demo": "a cluster, two kills, a report",
    "drill": "rounds of faults on a running cluster, and a ledger",
    "bench": "run a benchmark",
    "witness": "record a feed from its first message to its end",
    "forger": "send all that a subscriber can forge (drills)",
}


def commands() -> dict[str, importlib.metadata.EntryPoint]:
    """The sub-commands by name; of a checkout as its project file says, though it was installed before."""
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if project.is_file():
        told = tomllib.loads(project.read_text())["project"]["entry-points"][GROUP]
        return {name: importlib.metadata.EntryPoint(name, value, GROUP) for name, value in told.items()}
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _take_place()
    known = commands()
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("usage: tandemfeed COMMAND [OPTIONS]     (each has its own --help)\n")
        for each in sorted(known, key=lambda each: list(SUMMARIES).index(each) if each in SUMMARIES else 99):
            print(f"  {each:<15} {SUMMARIES.get(each, '')}")
        return 0
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        print(f"tandemfeed: no command {name!r}{hint} See tandemfeed --help.", file=sys.stderr)
        return 2
    status: int = known[name].load()(arguments[1:])
    return status


def _take_place() -> None:
    """Whatever the process that started this one wants of it, before anything is imported or any thread runs."""
    if os.environ.pop(LEASH_VARIABLE, ""):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(int(os.environ.pop(NICE_VARIABLE, "0")))
    if host := os.environ.pop(HOST_VARIABLE, ""):
        from deploy.network import enter_namespace

        enter_namespace(host)
    if disk := os.environ.pop(DISK_VARIABLE, ""):
        from deploy.small_disk import mount_small_disk

        size, _, folder = disk.partition(":")
        mount_small_disk(Path(folder), int(size))


if __name__ == "__main__":
    raise SystemExit(main())
