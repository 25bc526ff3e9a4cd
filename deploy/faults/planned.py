"""What happens in ordinary operation: a planned hand-over, and a disk that is full."""

from __future__ import annotations

import grpc

from adapter.output_journal import BLOCK_SIZE
from deploy.faults.scene import AFTERMATH_S, TAKEOVER_TIMEOUT_S, FaultUnavailable, Scene
from deploy.processes import ProcessFailed
from deploy.small_disk import fill_disk, make_room, seen_by
from journal import Tailer
from tandemfeed.v1 import admin_pb2

MESSAGE_SIZE_MIN = 40  # of a message in it, at least
FILL_MESSAGES = 2 * BLOCK_SIZE // MESSAGE_SIZE_MIN  # the block in use and the spare one are there already
DISK_SIZE_AT_FIRST = 4 * BLOCK_SIZE
DISK_SIZE_PER_ROUND = 3 * BLOCK_SIZE
ROOM_TIMEOUT_S = 10.0
LOGGED_IN_S = 0.2  # an operator's login takes both sides 10 ms of a processor: that is not the hand-over's


def hand_over(scene: Scene) -> str:
    """The admin server is asked for a planned hand-over: the active ends its epoch, the best backup opens the next."""
    scene.await_whole()
    active, epoch = scene.watch.active, scene.watch.epoch
    scene.touch()
    with scene.cluster.operations() as operations:
        scene.hold(LOGGED_IN_S)
        scene.strike(f"asking for a hand-over from adapter {active}")
        try:
            operations.Failover(admin_pb2.FailoverRequest(feed=scene.feed.name), timeout=TAKEOVER_TIMEOUT_S)
        except grpc.RpcError as refused:
            if refused.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise FaultUnavailable("this admin server offers no hand-over") from None
            raise ProcessFailed(f"the hand-over was refused: {refused.code().name}: {refused.details()}") from None
        heir = scene.await_takeover(active, epoch)
    scene.hold(AFTERMATH_S)
    scene.mend()
    scene.await_back(active)
    return f"adapter {active} handed over to {heir} and is its backup"


def disk_full(scene: Scene) -> str:
    """The disk of the active's journal fills up; the stream must not stop; then there is room again."""
    scene.await_whole()
    name = scene.watch.active
    process = scene.adapter(name)
    folder = seen_by(process.pid, scene.cluster.output_journal(scene.feed, name))
    since = process.logged_count
    scene.strike(f"filling the disk of the active, adapter {name}")
    fill_disk(folder)
    # What the journal had reserved already is used up first.
    timeout_s = TAKEOVER_TIMEOUT_S + FILL_MESSAGES / scene.rate
    process.await_log("disk full; not journaling packets", timeout_s, since=since)
    scene.say("the disk is full, nothing is kept")
    scene.hold(AFTERMATH_S)
    scene.mend()
    with Tailer(folder) as tailer:
        tailer.to_end()
        make_room(folder)
        if not tailer.wait(ROOM_TIMEOUT_S):
            raise process.failed(f"kept nothing within {ROOM_TIMEOUT_S:g} s after there was room on its disk again")
    scene.await_whole()
    return f"adapter {name}'s disk was full, then there was room: it keeps its journal again"
