"""Links that are cut, or lose packets, while the processes at both ends live.

A packet vanishes where it would arrive: no sender is told, no connection breaks."""

from __future__ import annotations

from collections.abc import Callable

from deploy.faults.scene import AFTERMATH_S, Scene
from deploy.topology import ADMIN

CUT_S = 2.0  # twenty times what a backup takes to call itself detached
LOSS_S = 3.0


def cut_active_from_admin(scene: Scene) -> str:
    """The active cannot reach the admin server: its lease runs out, it must fall silent before another begins."""
    return _cut_until_takeover(scene, "from the admin server", lambda victim: scene.network.cut(victim, [ADMIN]))


def cut_active(scene: Scene) -> str:
    """The active's host vanishes: nothing reaches it, nothing of it arrives, no connection breaks."""
    return _cut_until_takeover(scene, "from everything", scene.network.isolate)


def cut_active_from_backups(scene: Scene) -> str:
    """The active and the backups do not hear each other; admin server, source and clients hear all of them."""
    return _cut_for_a_while(scene, "the backups", lambda active: scene.others(active))


def cut_active_from_clients(scene: Scene) -> str:
    """Clients do not hear the active: the backups' copies must do."""
    return _cut_for_a_while(scene, "the client", lambda active: [scene.feed.client])


def loss_on_one_line(percent: int) -> Callable[[Scene], str]:
    """Everybody who hears the active loses this share of its datagrams, each others."""

    def strike(scene: Scene) -> str:
        scene.await_whole()
        return _lose(scene, [scene.watch.active], percent)

    return strike


def loss_on_both_lines(percent: int) -> Callable[[Scene], str]:
    """Everybody who hears an adapter, active or backup, loses this share of its datagrams."""

    def strike(scene: Scene) -> str:
        scene.await_whole()
        return _lose(scene, list(scene.cluster.shape.adapter_names), percent)

    return strike


def _lose(scene: Scene, names: list[str], percent: int) -> str:
    what = f"{percent} % loss of what adapter{'s' if len(names) > 1 else ''} {' and '.join(names)} multicast"
    scene.strike(what)
    try:
        for name in names:
            scene.network.lose(scene.feed.adapter(name), [*scene.others(name), scene.feed.client], percent)
        scene.hold(LOSS_S)
    finally:
        scene.mend()
        scene.network.heal()
    scene.await_whole()
    return f"{what}, for {LOSS_S:g} s"


def _cut_for_a_while(scene: Scene, whom: str, others: Callable[[str], list[str]]) -> str:
    scene.await_whole()
    active = scene.watch.active
    scene.strike(f"cutting the active, adapter {active}, from {whom}")
    scene.network.cut(scene.feed.adapter(active), others(active))
    try:
        scene.hold(CUT_S)
    finally:
        scene.mend()
        scene.network.heal()
    scene.await_whole()
    return f"cut adapter {active} from {whom} for {CUT_S:g} s"


def _cut_until_takeover(scene: Scene, where: str, cut: Callable[[str], None]) -> str:
    scene.await_whole()
    watch = scene.watch
    victim, epoch = watch.active, watch.epoch
    scene.strike(f"cutting the active, adapter {victim}, {where}")
    cut(scene.feed.adapter(victim))
    try:
        heir = scene.await_takeover(victim, epoch)
        scene.hold(AFTERMATH_S)
    finally:
        scene.mend()
        scene.network.heal()
    scene.await_back(victim)
    return f"cut adapter {victim} {where}; {heir} took over; healed, {victim} is a backup"
