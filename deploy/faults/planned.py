"""What an operator does or overlooks: a planned hand-over, a replacement of all keys, and a full disk."""

from __future__ import annotations

import grpc

from tandemfeed.adapter.records.output_journal import BLOCK_SIZE
from tandemfeed.admin_server.alerts import Thresholds, alerts_of
from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.cluster.small_disk import fill_disk, make_room, path_in_process
from tandemfeed.deploy.faults.context import (
    AFTERMATH_S,
    HEALTHY_TIMEOUT_S,
    TAKEOVER_TIMEOUT_S,
    FaultContext,
    FaultUnavailable,
)
from tandemfeed.journal import Tailer
from tandemfeed.v1 import admin_pb2, admin_pb2_grpc

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


def replace_keys(context: FaultContext) -> str:
    """An operator replaces, at once, the key that signs tokens and all keys of channels and sources, as if the former
    had been stolen: every call to the admin server ends, and every process logs in again."""
    context.await_healthy()
    watch = context.watch
    connections = watch.connections_seen
    context.mark_disturbance()
    with context.cluster.operator() as channel:
        context.run_for(LOGGED_IN_S)
        former = _key_ids(context, channel)
        context.mark_fault("replacing all keys")
        request = admin_pb2.RotateTokenKeysRequest(drop_former=True, reason="drill")
        admin_pb2_grpc.IdentityAdministrationStub(channel).RotateTokenKeys(request, timeout=TAKEOVER_TIMEOUT_S)
    watch.wait_for(lambda: watch.connections_seen > connections, HEALTHY_TIMEOUT_S, "another login")
    for each in context.cluster.watches.values():
        each.await_healthy(HEALTHY_TIMEOUT_S)
    with context.cluster.operator() as channel:
        newest = _key_ids(context, channel)
    if kept := [topic for topic, key_id in newest.items() if former[topic] == key_id]:
        raise ProcessFailed(f"the keys of these were not replaced: {', '.join(kept)}")
    context.run_for(AFTERMATH_S)
    context.mark_repair()
    return f"replaced the key of tokens and {len(newest)} keys of the feed; every process logged in again"


def _key_ids(context: FaultContext, channel: grpc.Channel) -> dict[str, int]:
    """The newest key of each channel of the feed, by topic, and of its source."""
    request = admin_pb2.ListKeysRequest(feed=context.feed.name)
    keys = admin_pb2_grpc.OperationsStub(channel).ListKeys(request, timeout=TAKEOVER_TIMEOUT_S).keys
    return {key.topic or "source": key.key_id for key in sorted(keys, key=lambda key: key.not_before_unix_ns)}


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
