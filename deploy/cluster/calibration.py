"""Chooses the rate at which the demo plays: the highest that this machine bears, up to a limit.

Four processes carry the demo's stream: the gateway, two adapters and the client. The calibration starts as many, with
the stream's scheduling, and lets them work at once for a second. Each repeats a piece of work that costs as much
processor time as one packet costs each of the four. Their mean counts, because the scheduler soon moves a process that
lags. So a slow processor, too few processors and other load all lower the rate.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from tandemfeed.deploy.cluster.processes import ProcessFailed
from tandemfeed.transport.scheduling import request_short_slices

PROCESS_COUNT = 4
SECONDS = 1.0
# At this load a third of the machine remains for restarts, Spark and what else it does.
SPARE_FACTOR = 1.6
RATE_MIN = 1_000.0  # messages per second
DATAGRAM = bytes(1_400)
WORD = struct.Struct("<Q")
ROUNDS = 120  # of a piece of work: 250 µs where the gateway, an adapter and the client took 170 to 270 µs for a packet


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the machine did.

    Attributes:
        pieces_per_s: pieces of work of each process.
        messages_per_packet: of the stream to be played.
        rate_max: the limit in messages per second.
    """

    pieces_per_s: tuple[float, ...]
    messages_per_packet: int
    rate_max: float

    @property
    def packets_per_s(self) -> float:
        """The packets per second that the machine bears."""
        return max(self.mean_pieces_per_s / SPARE_FACTOR, RATE_MIN / self.messages_per_packet)

    @property
    def mean_pieces_per_s(self) -> float:
        """Of one process."""
        return statistics.mean(self.pieces_per_s)

    @property
    def rate(self) -> float:
        """The messages per second to play, to two digits."""
        borne = self.packets_per_s * self.messages_per_packet
        step = 10.0 ** (math.floor(math.log10(borne)) - 1)
        return min(self.rate_max, borne // step * step)

    @property
    def reason(self) -> str:
        """Why this rate, in words."""
        needed = self.rate_max / self.messages_per_packet * SPARE_FACTOR
        done = f"{len(self.pieces_per_s)} processes at once did the work of {self.mean_pieces_per_s:,.0f} packets each"
        verdict = "the default" if self.rate == self.rate_max else "what this machine bears now"
        return f"{verdict}: in a second, {done}; {self.rate_max:,.0f} messages per second need {needed:,.0f}"


def calibrate(messages_per_packet: int, rate_max: float, seconds: float = SECONDS) -> Calibration:
    """Measure this machine, with whatever else it does.

    Raises:
        ProcessFailed: a process of the calibration ended early.
    """
    command = [sys.executable, "-m", "tandemfeed.deploy.demo.calibration", str(seconds)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESS_COUNT)
    ]
    try:
        for worker in workers:
            _read(worker)
        for worker in workers:
            _pipe(worker.stdin).write("start\n")
            _pipe(worker.stdin).flush()
        return Calibration(tuple(float(_read(worker)) for worker in workers), messages_per_packet, rate_max)
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
        (word,) = WORD.unpack(hashlib.blake2b(DATAGRAM[number:], digest_size=WORD.size).digest())
        seen[word] = DATAGRAM[: number + 1]


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
