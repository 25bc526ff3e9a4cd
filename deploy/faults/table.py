"""The faults by name. A new fault needs a function in one of these modules, a row here, and a row in docs/drills.md."""

from __future__ import annotations

from tandemfeed.deploy.faults.clients import kill_client
from tandemfeed.deploy.faults.context import Fault
from tandemfeed.deploy.faults.days import new_day
from tandemfeed.deploy.faults.forging import FORGED_SECONDS, forge_at
from tandemfeed.deploy.faults.kills import kill_active, kill_admin, kill_backup, kill_driver, restart_all
from tandemfeed.deploy.faults.links import (
    cut_active,
    cut_active_from_admin,
    cut_active_from_backups,
    cut_active_from_clients,
    loss_on_both_lines,
    loss_on_one_line,
)
from tandemfeed.deploy.faults.lying import LYING_S, lie
from tandemfeed.deploy.faults.pauses import pause_active, pause_admin, pause_backup, slow_backup
from tandemfeed.deploy.faults.planned import FILL_MESSAGES, disk_full, hand_over, replace_keys

FORGED_PER_SECOND = 5_000.0  # a quarter of what the client receives anyway; two cores can carry it besides the cluster
KILL_GOAL_MS = 10.0
VANISH_GOAL_MS = 500.0

FAULTS = {
    "kill-active": Fault(kill_active, "SIGKILL the active; it restarts as a backup", 9.0, stall_aim_ms=KILL_GOAL_MS),
    "kill-backup": Fault(kill_backup, "SIGKILL a backup, then restart it", 9.0),
    "kill-driver": Fault(kill_driver, "SIGKILL the Spark driver in a batch, then restart it", 24.0, needs_driver=True),
    "kill-client": Fault(
        kill_client, "SIGKILL an application that has a durable cursor", 40.0, stall_aim_ms=KILL_GOAL_MS
    ),
    "kill-admin": Fault(kill_admin, "SIGKILL the admin server, then restart it after 3 s", 14.0),
    "pause-active": Fault(
        pause_active, "SIGSTOP the active until its lease has ended", 8.0, stall_aim_ms=VANISH_GOAL_MS
    ),
    "pause-backup": Fault(pause_backup, "SIGSTOP a backup for 3 s", 12.0),
    "pause-admin": Fault(pause_admin, "SIGSTOP the admin server for 3 s", 12.0),
    "slow-backup": Fault(slow_backup, "slow a backup down to a tenth for 3 s", 8.0),
    "cut-active-from-admin": Fault(
        cut_active_from_admin,
        "cut the active off from the admin server",
        10.0,
        stall_aim_ms=VANISH_GOAL_MS,
        needs_network=True,
    ),
    "cut-active-from-backups": Fault(
        cut_active_from_backups, "cut the active off from the backups for 2 s", 8.0, needs_network=True
    ),
    "cut-active-from-clients": Fault(
        cut_active_from_clients, "cut the active off from the client for 2 s", 7.0, needs_network=True
    ),
    "cut-active": Fault(
        cut_active, "cut the active off from everything", 10.0, stall_aim_ms=VANISH_GOAL_MS, needs_network=True
    ),
    "loss-one-line-1": Fault(loss_on_one_line(1), "lose 1 % of the active's packets for 3 s", 7.0, needs_network=True),
    "loss-one-line-5": Fault(loss_on_one_line(5), "lose 5 % of the active's packets for 3 s", 7.0, needs_network=True),
    "loss-both-lines-1": Fault(
        loss_on_both_lines(1),
        "lose 1 % of every adapter's packets for 3 s",
        7.0,
        stall_aim_ms=VANISH_GOAL_MS,
        needs_network=True,
    ),
    "loss-both-lines-5": Fault(
        loss_on_both_lines(5),
        "lose 5 % of every adapter's packets for 3 s",
        7.0,
        stall_aim_ms=VANISH_GOAL_MS,
        needs_network=True,
    ),
    "disk-full": Fault(
        disk_full,
        "fill the disk of the active's journal, then make room",
        10.0,
        round_messages=FILL_MESSAGES,
        needs_small_disk=True,
    ),
    "restart-all": Fault(
        restart_all,
        "restart every process, one after another, under load",
        90.0,
        stall_aim_ms=KILL_GOAL_MS,
        needs_driver=True,
    ),
    "forge": Fault(
        forge_at(FORGED_PER_SECOND, FORGED_SECONDS),
        "a subscriber forges packets of every adapter",
        FORGED_SECONDS + 15.0,
        verify="signed",
    ),
    "lie": Fault(lie, "replace a backup by one that lies with its own keys", LYING_S + 25.0),
    "new-day": Fault(
        new_day(is_active_killed=False), "the source ends its day and begins the next one", 10.0, day_s=6.0
    ),
    "new-day-kill": Fault(
        new_day(is_active_killed=True),
        "SIGKILL the active as the source begins its next day",
        20.0,
        day_s=15.0,  # long enough for the killed adapter to be back before the day ends
    ),
    "replace-keys": Fault(replace_keys, "replace every key of tokens, channels and sources", 12.0),
    "hand-over": Fault(hand_over, "planned hand-over, as by `tandemfeed admin failover`", 5.0),
}
