"""Links that are cut or lose packets, while the processes at both ends keep running.

Packets are dropped at the receiver, so no sender gets an error and no connection breaks."""

from __future__ import annotations

from collections.abc import Callable

from tandemfeed.deploy.cluster.topology import ADMIN
from tandemfeed.deploy.faults.context import AFTERMATH_S, FaultContext

CUT_S = 2.0  # twenty times what a backup takes to become DETACHED
LOSS_S = 3.0


def cut_active_from_admin(context: FaultContext) -> str:
    """The active cannot reach the admin server: its lease expires, and it must stop before another adapter starts."""
    return _cut_until_takeover(context, "from the admin server", lambda victim: context.network.cut(victim, [ADMIN]))


def cut_active(context: FaultContext) -> str:
    """The active's host vanishes: no packet reaches or leaves it, and no connection breaks."""
    return _cut_until_takeover(context, "from everything", context.network.isolate)


def cut_active_from_backups(context: FaultContext) -> str:
    """The active and the backups cannot reach each other; the admin server, source and clients reach all of them."""
    return _cut_for_a_while(context, "the backups", lambda active: context.others(active))


def cut_active_from_clients(context: FaultContext) -> str:
    """Clients do not receive the active's packets and must rely on the backups' copies."""
    return _cut_for_a_while(context, "the client", lambda active: [context.feed.client])


def loss_on_one_line(percent: int) -> Callable[[FaultContext], str]:
    """Every receiver of the active loses this share of its datagrams, independently of the other receivers."""

    def inject(context: FaultContext) -> str:
        context.await_healthy()
        return _lose(context, [context.watch.active], percent)

    return inject


def loss_on_both_lines(percent: int) -> Callable[[FaultContext], str]:
    """Every receiver of any adapter, active or backup, loses this share of its datagrams, independently."""

    def inject(context: FaultContext) -> str:
        context.await_healthy()
        return _lose(context, list(context.cluster.shape.adapter_names), percent)

    return inject


def _lose(context: FaultContext, names: list[str], percent: int) -> str:
    what = f"{percent} % loss of the packets of adapter{'s' if len(names) > 1 else ''} {' and '.join(names)}"
    context.mark_fault(what)
    try:
        for name in names:
            context.network.lose(context.feed.adapter(name), [*context.others(name), context.feed.client], percent)
        context.run_for(LOSS_S)
    finally:
        context.mark_repair()
        context.network.heal()
    context.await_healthy()
    return f"{what}, for {LOSS_S:g} s"


def _cut_for_a_while(context: FaultContext, whom: str, others: Callable[[str], list[str]]) -> str:
    context.await_healthy()
    active = context.watch.active
    context.mark_fault(f"cutting the active adapter, {active}, off from {whom}")
    context.network.cut(context.feed.adapter(active), others(active))
    try:
        context.run_for(CUT_S)
    finally:
        context.mark_repair()
        context.network.heal()
    context.await_healthy()
    return f"cut adapter {active} off from {whom} for {CUT_S:g} s"


def _cut_until_takeover(context: FaultContext, where: str, cut: Callable[[str], None]) -> str:
    context.await_healthy()
    watch = context.watch
    victim, epoch = watch.active, watch.epoch
    context.mark_fault(f"cutting the active adapter, {victim}, off {where}")
    cut(context.feed.adapter(victim))
    try:
        successor = context.await_takeover(victim, epoch)
        context.run_for(AFTERMATH_S)
    finally:
        context.mark_repair()
        context.network.heal()
    context.await_back(victim)
    return f"cut adapter {victim} off {where}; {successor} took over; reconnected, {victim} is a backup"
