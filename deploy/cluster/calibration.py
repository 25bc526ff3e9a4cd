"""Chooses the rate at which the demo and the drills play: the highest that this machine bears, up to a limit.

A feed's gateway, adapters and client carry its stream. The calibration starts as many processes, with the stream's
scheduling, and lets them work at once for a second. Each repeats a piece of work that costs as much processor time as
one packet costs each of those. Their mean counts, because the scheduler soon moves a process that lags. So a slow
processor, too few processors and other load all lower the rate.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.deploy.cluster.topology import Shape
from tandemfeed.transport.scheduling import request_short_slices

RATE_MAX = 20_000.0  # messages per second of each feed, unless --rate says otherwise
MESSAGES_PER_PACKET = 20  # at that rate, with two source streams
SECONDS = 1.0
# At this load a third of the machine remains for restarts, Spark and what else it does.
SPARE_FACTOR = 1.6
RATE_MIN = 1_000.0  # messages per second
DATAGRAM = bytes(1_400)
ROUNDS = 110  # of a piece of work: 240 µs where the gateway, an adapter and the client took 170 to 270 µs for a packet


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the machine did.

    Attributes:
        pieces_per_s: pieces of work of each process.
    """

    pieces_per_s: tuple[float, ...]

    @property
    def packets_per_s(self) -> float:
        """The packets per second of each feed that the machine bears."""
        return max(self.mean_pieces_per_s / SPARE_FACTOR, RATE_MIN / MESSAGES_PER_PACKET)

    @property
    def mean_pieces_per_s(self) -> float:
        """Of one process."""
        return statistics.mean(self.pieces_per_s)

    @property
    def rate(self) -> float:
        """The messages per second to play, to two digits."""
        borne = self.packets_per_s * MESSAGES_PER_PACKET
        step = 10.0 ** (math.floor(math.log10(borne)) - 1)
        return min(RATE_MAX, borne // step * step)

    @property
    def reason(self) -> str:
        """Why this rate, in words."""
        needed = RATE_MAX / MESSAGES_PER_PACKET * SPARE_FACTOR
        done = f"{len(self.pieces_per_s)} processes at once did the work of {self.mean_pieces_per_s:,.0f} packets each"
        verdict = "the default" if self.rate == RATE_MAX else "what this machine bears now"
        return f"{verdict}: in a second, {done}; {RATE_MAX:,.0f} messages per second need {needed:,.0f}"


def calibrate(shape: Shape, seconds: float = SECONDS) -> Calibration:
    """Measure this machine, with whatever else it does, for a cluster of this size.

    Raises:
        ProcessFailed: a process of the calibration ended early.
    """
    command = [sys.executable, "-m", "tandemfeed.deploy.cluster.calibration", str(seconds)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(shape.feeds * (len(shape.adapter_names) + len(("gateway", "client"))))
    ]
    try:
        for worker in workers:
            _read(worker)
        for worker in workers:
            _pipe(worker.stdin).write("start\n")
            _pipe(worker.stdin).flush()
        return Calibration(tuple(float(_read(worker)) for worker in workers))
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _read(worker: subprocess.Popen[str]) -> str:
    line = _pipe(worker.stdout).readline().strip()
    if not line:
        raise ProcessFailed(f"the calibration ended with status {worker.wait()}; choose a rate with --rate")
    return line


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _work() -> None:
    """A piece of work: as in the path of a message, some of it in the interpreter and some in compiled code."""
    seen: dict[int, bytes] = {}
    for number in range(ROUNDS):
        digest = hashlib.blake2b(DATAGRAM[number:], digest_size=8).digest()
        seen[int.from_bytes(digest, "little")] = DATAGRAM[: number + 1]


def _worker(arguments: Sequence[str]) -> None:
    """Work for some seconds after a line on standard input; print the pieces of work per second."""
    request_short_slices()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    began_s, count = time.monotonic(), 0
    while (took_s := time.monotonic() - began_s) < float(arguments[0]):
        _work()
        count += 1
    sys.stdout.write(f"{count / took_s}\n")


if __name__ == "__main__":
    _worker(sys.argv[1:])
