"""`tandemfeed NAME …`: finds the sub-command NAME among the entry points and runs it. Each sub-command belongs to its
component, and only the one that runs is imported."""

from __future__ import annotations

import ctypes
import difflib
import gc
import importlib.metadata
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tandemfeed import __version__
from tandemfeed.runtime.threads import EXIT_THREAD_FAILED, exit_status
from tandemfeed.transport.entry_points import entry_points

GROUP = "tandemfeed.commands"
LEASH_VARIABLE = "TANDEMFEED_LEASH"  # if set, this process dies with its parent
HOST_VARIABLE = "TANDEMFEED_HOST"  # path of the network namespace to enter
DISK_VARIABLE = "TANDEMFEED_DISK"  # SIZE:FOLDER: mount a small disk on this folder, for this process only
NICE_VARIABLE = "TANDEMFEED_NICE"  # added to the nice value of this process
PR_SET_PDEATHSIG = 1
# What a command needs beside the client. Commands that are not listed need everything.
EXTRAS = {"journal": "journal", "adapter": "cluster", "convert": "cluster", "admin": "cluster",
          "admin-server": "cluster", "source-job": "spark", "source-gateway": "spark", "ticks": "spark",
          "bars": "spark", "reconcile": "spark", "end-session": "spark", "contribution-gateway": "cluster",
          "subscribe": "tables", "snapshot": "tables", "replay": "tables"}  # fmt: skip
# Not in the path of a message, so they must not delay one.
IN_BACKGROUND = {"source-job", "ticks", "bars", "reconcile", "forger"}
# Joins streams that are running. Its modules and kernels take seconds of a processor to load.
LOADED_IN_BACKGROUND = {"adapter"}
SUMMARIES = {
    "admin-server": "run the admin server",
    "admin": "show and manage feeds, adapters and epochs",
    "adapter": "run a feed adapter",
    "convert": "check, explain, compile and try a conversion; list dead letters",
    "source-job": "number a recording into the source journal (Spark)",
    "source-gateway": "multicast the source journal and fill gaps of adapters",
    "end-session": "end the session of a source journal",
    "contribution-gateway": "accept messages of clients and multicast them",
    "ticks": "make a recording: generate or ingest ticks",
    "bars": "write bars of trades and quotes into Parquet",
    "reconcile": "prove from journals that source and adapters agree",
    "subscribe": "follow a feed: live view, statistics or messages",
    "snapshot": "print the last message of each symbol",
    "replay": "repeat a feed's history, at recorded or another speed",
    "losses": "show what subscriptions lost, and what became of it",
    "contribute": "contribute messages to a feed, or cancel them",
    "stubs": "write the classes of a message model's messages, for editors",
    "journal": "read, check and maintain a journal",
    "demo": "run a cluster, kill its active adapter twice, and report",
    "drill": "inject faults into a running cluster and report",
    "bench": "run a benchmark",
    "capacity": "compute the adapters, executors and bandwidth of a load",
    "hiccups": "measure how long this machine pauses",
    "completion": "print a script that completes these commands in a shell",
    "witness": "record everything a feed delivers (used by demo and drill)",
    "durable-reader": "handle each message once, across kills (used by drill)",
    "forger": "send the packets that a subscriber can forge (used by drill)",
}


def commands() -> dict[str, importlib.metadata.EntryPoint]:
    """The sub-commands by name."""
    return entry_points(GROUP)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    apply_placement()
    known = commands()
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("usage: tandemfeed COMMAND [OPTIONS] | --version\n")
        print("`tandemfeed COMMAND --help` shows the options of a command.\n")
        for each in sorted(known, key=lambda each: list(SUMMARIES).index(each) if each in SUMMARIES else 99):
            print(f"  {each:<14} {SUMMARIES.get(each, '')}")
        return 0
    if name == "--version":
        print(f"tandemfeed {__version__}")
        return 0
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; see tandemfeed --help"
        print(f"tandemfeed: unknown command {name!r}{hint}", file=sys.stderr)
        return 2
    try:
        # With arguments it is called inside another program, whose priority is not to be changed.
        command = _load(known[name]) if argv is None else known[name].load()
        status: int = command(arguments[1:]) if argv is not None else _run(command, arguments[1:])
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("tandemfeed"):
            raise
        print(
            f"tandemfeed {name}: needs the package {missing.name}, which is not installed; "
            f"run: pip install 'tandemfeed[{EXTRAS.get(name, 'all')}]'",
            file=sys.stderr,
        )
        return 2
    if argv is None:
        if status != EXIT_THREAD_FAILED:  # the sub-command has not said so itself
            status = exit_status(status)
        gc.freeze()  # else the interpreter, as it exits, looks for cycles among all objects, which takes 0.1 s
    return status


def _run(command: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Run a sub-command in this process, whose output may go to a console that lacks some characters, and may be read
    only in part, as by `head`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _has_no_reader(sys.stdout.fileno()):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _has_no_reader(descriptor: int) -> bool:
    """True if an output is a pipe or socket whose other end is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _load(entry: importlib.metadata.EntryPoint) -> Any:
    """Import a sub-command, with the priority that it may have."""
    from tandemfeed.transport.scheduling import call_in_background, run_in_background

    if entry.name in IN_BACKGROUND:
        run_in_background()
    return call_in_background(entry.load) if entry.name in LOADED_IN_BACKGROUND else entry.load()


def apply_placement() -> None:
    """Apply what the parent process has set in the environment; before any import and before any thread starts."""
    if os.environ.pop(LEASH_VARIABLE, ""):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(int(os.environ.pop(NICE_VARIABLE, "0")))
    if host := os.environ.pop(HOST_VARIABLE, ""):
        from tandemfeed.deploy.cluster.network import enter_namespace

        enter_namespace(host)
    if disk := os.environ.pop(DISK_VARIABLE, ""):
        from tandemfeed.deploy.cluster.small_disk import mount_small_disk

        size, _, folder = disk.partition(":")
        mount_small_disk(Path(folder), int(size))


if __name__ == "__main__":
    raise SystemExit(main())
