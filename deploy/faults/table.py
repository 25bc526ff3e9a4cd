"""The faults by name. A new one is a function beside the others, a row here, and a row in docs/drills.md."""

from __future__ import annotations

from deploy.faults.days import new_day
from deploy.faults.ends import kill_active, kill_admin, kill_backup, kill_driver, restart_all
from deploy.faults.forging import FORGED_SECONDS, forge_at
from deploy.faults.links import (
    cut_active,
    cut_active_from_admin,
    cut_active_from_backups,
    cut_active_from_clients,
    loss_on_both_lines,
    loss_on_one_line,
)
from deploy.faults.pauses import pause_active, slow_backup
from deploy.faults.planned import FILL_MESSAGES, disk_full, hand_over
from deploy.faults.scene import Fault

FORGED_PER_SECOND = 5_000.0  # a quarter of what the client hears anyway: two cores take it beside the cluster
KILL_AIM_MS = 10.0
VANISH_AIM_MS = 500.0

FAULTS = {
    "kill-active": Fault(kill_active, "SIGKILL of the active; it comes back as backup", 9.0, stall_aim_ms=KILL_AIM_MS),
    "kill-backup": Fault(kill_backup, "SIGKILL of a backup; it comes back", 9.0),
    "kill-driver": Fault(kill_driver, "SIGKILL of Spark's driver in mid-batch; started again", 24.0, needs_driver=True),
    "kill-admin": Fault(kill_admin, "SIGKILL of the admin server; back after 3 s", 14.0),
    "pause-active": Fault(
        pause_active, "SIGSTOP of the active beyond its lease, then SIGCONT", 8.0, stall_aim_ms=VANISH_AIM_MS
    ),
    "slow-backup": Fault(slow_backup, "a backup gets a tenth of the processor for 3 s", 8.0),
    "cut-active-from-admin": Fault(
        cut_active_from_admin,
        "the active cannot reach the admin server",
        10.0,
        stall_aim_ms=VANISH_AIM_MS,
        needs_network=True,
    ),
    "cut-active-from-backups": Fault(
        cut_active_from_backups, "active and backups do not hear each other for 2 s", 8.0, needs_network=True
    ),
    "cut-active-from-clients": Fault(
        cut_active_from_clients, "the client does not hear the active for 2 s", 7.0, needs_network=True
    ),
    "cut-active": Fault(cut_active, "the active's host vanishes", 10.0, stall_aim_ms=VANISH_AIM_MS, needs_network=True),
    "loss-one-line-1": Fault(loss_on_one_line(1), "1 % loss of what the active multicasts", 7.0, needs_network=True),
    "loss-one-line-5": Fault(loss_on_one_line(5), "5 % loss of what the active multicasts", 7.0, needs_network=True),
    "loss-both-lines-1": Fault(
        loss_on_both_lines(1),
        "1 % loss of what every adapter multicasts",
        7.0,
        stall_aim_ms=VANISH_AIM_MS,
        needs_network=True,
    ),
    "loss-both-lines-5": Fault(
        loss_on_both_lines(5),
        "5 % loss of what every adapter multicasts",
        7.0,
        stall_aim_ms=VANISH_AIM_MS,
        needs_network=True,
    ),
    "disk-full": Fault(
        disk_full,
        "the disk of the active's journal is full, then there is room again",
        10.0,
        round_messages=FILL_MESSAGES,
        needs_small_disk=True,
    ),
    "restart-all": Fault(
        restart_all,
        "every process restarted, one after another, under load",
        90.0,
        stall_aim_ms=KILL_AIM_MS,
        needs_driver=True,
    ),
    "forge": Fault(
        forge_at(FORGED_PER_SECOND, FORGED_SECONDS),
        "a subscriber sends forged packets as all adapters for a minute",
        FORGED_SECONDS + 15.0,
        verify="signed",
    ),
    "new-day": Fault(
        new_day(is_active_killed=False), "the source ends its day and begins the next one", 10.0, has_days=True
    ),
    "new-day-kill": Fault(
        new_day(is_active_killed=True),
        "the source begins its next day, and the active is killed in the middle",
        14.0,
        has_days=True,
    ),
    "hand-over": Fault(hand_over, "planned: tandemfeed admin failover", 5.0),
}
