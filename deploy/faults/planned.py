"""Events of ordinary operation: a planned hand-over, and a full disk."""

from __future__ import annotations

import grpc

from tandemfeed.adapter.records.output_journal import BLOCK_SIZE
from tandemfeed.admin_server.command.alerts import Thresholds, alerts_of
from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.cluster.small_disk import fill_disk, make_room, path_in_process
from tandemfeed.deploy.faults.context import AFTERMATH_S, TAKEOVER_TIMEOUT_S, FaultContext, FaultUnavailable
from tandemfeed.journal import Tailer
from tandemfeed.v1 import admin_pb2

MESSAGE_SIZE_MIN = 40  # bytes of a message in the journal
FILL_MESSAGES = 2 * BLOCK_SIZE // MESSAGE_SIZE_MIN  # what fits in the current block and the spare one
DISK_SIZE_AT_FIRST = 4 * BLOCK_SIZE
DISK_SIZE_PER_ROUND = 3 * BLOCK_SIZE
ROOM_TIMEOUT_S = 10.0
LOGGED_IN_S = 0.2  # an operator's login costs both sides 10 ms of processor time, which must not be measured


def hand_over(context: FaultContext) -> str:
    """An operator requests a hand-over: the active ends its epoch, and the best backup opens the next one."""
    context.await_healthy()
    active, epoch = context.watch.active, context.watch.epoch
    context.mark_disturbance()
    with context.cluster.operations() as operations:
        context.run_for(LOGGED_IN_S)
        context.mark_fault(f"requesting a hand-over from adapter {active}")
        try:
            operations.Failover(admin_pb2.FailoverRequest(feed=context.feed.name), timeout=TAKEOVER_TIMEOUT_S)
        except grpc.RpcError as refused:
            if refused.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise FaultUnavailable("this admin server does not support hand-overs") from None
            raise ProcessFailed(f"the hand-over was refused: {refused.code().name}: {refused.details()}") from None
        successor = context.await_takeover(active, epoch)
    context.run_for(AFTERMATH_S)
    context.mark_repair()
    context.await_back(active)
    return f"adapter {active} handed over to {successor} and became a backup"


def disk_full(context: FaultContext) -> str:
    """The disk of the active's journal fills up, and later has room again; the stream must not stop."""
    context.await_healthy()
    name = context.watch.active
    process = context.adapter(name)
    folder = path_in_process(process.pid, context.cluster.output_journal(context.feed, name))
    since = process.logged_count
    context.mark_fault(f"filling the disk of the active adapter, {name}")
    fill_disk(folder)
    # The journal first uses up the space it has already reserved.
    timeout_s = TAKEOVER_TIMEOUT_S + FILL_MESSAGES / context.rate
    process.await_log("disk full; not journaling packets", timeout_s, since=since)
    context.say("the disk is full; the adapter no longer journals")
    context.run_for(AFTERMATH_S)
    status = context.cluster.status(context.feed)
    if not any(f"{name} does not journal packets" in alert.text for alert in alerts_of(status, Thresholds())):
        raise process.failed("journals nothing, and the status of the feed does not say so")
    context.mark_repair()
    with Tailer(folder) as tailer:
        tailer.to_end()
        make_room(folder)
        if not tailer.wait(ROOM_TIMEOUT_S):
            raise process.failed(f"did not journal within {ROOM_TIMEOUT_S:g} s after its disk had room again")
    context.await_healthy()
    return f"filled the disk of adapter {name}, then made room; it journals again"
