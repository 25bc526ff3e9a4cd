"""Processes that are paused and resumed: an active that misses its lease, a slow backup, and judges of others, who must
not hold their own pause against anybody."""

from __future__ import annotations

import time

from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.cluster.topology import ADMIN
from tandemfeed.deploy.faults.context import AFTERMATH_S, FaultContext

JUDGE_PAUSE_S = (
    3.0  # every time limit of an adapter's and of the server's for others passes, except that of connections
)
ACCUSING = ("detached", "ahead")
SLOW_S = 3.0
SLOW_PAUSE_S, SLOW_RUN_S = 0.045, 0.005  # a tenth of the time; each pause outlasts every gap timer


def pause_active(context: FaultContext) -> str:
    """SIGSTOP the active until its lease has expired and another is active, then SIGCONT; it must do no harm."""
    context.await_healthy()
    watch = context.watch
    victim, epoch = watch.active, watch.epoch
    process = context.adapter(victim)
    context.mark_fault(f"pausing the active adapter, {victim} (SIGSTOP)")
    process.pause()
    try:
        successor = context.await_takeover(victim, epoch)
        context.run_for(AFTERMATH_S)
    finally:
        context.mark_repair()
        process.resume()
    context.await_back(victim)
    return (
        f"paused adapter {victim} (SIGSTOP) beyond the end of its lease; {successor} took over; resumed (SIGCONT), "
        f"{victim} is a backup"
    )


def slow_backup(context: FaultContext) -> str:
    """A backup runs a tenth of the time (45 ms paused, 5 ms running) for 3 s. No client or adapter may notice."""
    context.await_healthy()
    victim = context.any_backup()
    process = context.adapter(victim)
    context.mark_fault(f"slowing down a backup adapter, {victim}")
    until = time.monotonic() + SLOW_S
    try:
        while time.monotonic() < until:
            process.pause()
            context.run_for(SLOW_PAUSE_S)
            process.resume()
            context.run_for(SLOW_RUN_S)
    finally:
        context.mark_repair()
        process.resume()
    context.await_healthy()
    return f"slowed adapter {victim} down to a tenth (alternating SIGSTOP and SIGCONT) for {SLOW_S:g} s"


def pause_backup(context: FaultContext) -> str:
    """SIGSTOP a backup, then SIGCONT: it must not take the active for silent, forward by itself, or be failed."""
    context.await_healthy()
    watch = context.watch
    victim, active, epoch = context.any_backup(), watch.active, watch.epoch
    process = context.adapter(victim)
    logged = process.logged_count
    context.mark_fault(f"pausing a backup adapter, {victim} (SIGSTOP)")
    process.pause()
    try:
        context.run_for(JUDGE_PAUSE_S)
    finally:
        context.mark_repair()
        process.resume()
    context.await_back(victim)
    moves = [str(line["new"]) for line in process.logged("state moved", since=logged)]
    if accusations := [move for move in moves if move in ACCUSING]:
        raise ProcessFailed(f"adapter {victim}, which was itself paused, moved to {accusations}")
    _require_roles(context, active, epoch)
    return (
        f"paused adapter {victim} (SIGSTOP) for {JUDGE_PAUSE_S:g} s; resumed (SIGCONT), it moved to {', '.join(moves)}"
    )


def pause_admin(context: FaultContext) -> str:
    """SIGSTOP the admin server, then SIGCONT: it must take no adapter for dead, and replace no process."""
    context.await_healthy()
    watch = context.watch
    active = watch.active
    adapters = {name: context.adapter(name) for name in context.cluster.shape.adapter_names}
    pids = {name: process.pid for name, process in adapters.items()}
    logged = {name: process.logged_count for name, process in adapters.items()}
    admin = context.cluster.processes[ADMIN]
    context.mark_fault("pausing the admin server (SIGSTOP)")
    admin.pause()
    try:
        context.run_for(JUDGE_PAUSE_S)
    finally:
        context.mark_repair()
        admin.resume()
    context.await_healthy()
    context.run_for(AFTERMATH_S)
    for name, process in adapters.items():
        if not process.is_running or process.pid != pids[name]:
            raise ProcessFailed(f"adapter {name} ended because the admin server was paused")
        if process.logged("lost the admin server; retrying", since=logged[name]):
            raise ProcessFailed(f"the admin server, which was itself paused, ended the stream of adapter {name}")
    same = f"adapter {active} stayed active"
    roles = same if watch.active == active else f"adapter {watch.active} is active instead of {active}"
    return f"paused the admin server (SIGSTOP) for {JUDGE_PAUSE_S:g} s and resumed it (SIGCONT); {roles}"


def _require_roles(context: FaultContext, active: str, epoch: int) -> None:
    watch = context.watch
    if (watch.active, watch.epoch) != (active, epoch):
        raise ProcessFailed(f"adapter {watch.active} is active in epoch {watch.epoch} instead of {active} in {epoch}")
