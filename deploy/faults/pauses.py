"""Processes that are paused and resumed: an active that misses its lease, and a slow backup."""

from __future__ import annotations

import time

from tandemfeed.deploy.faults.context import AFTERMATH_S, FaultContext

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
