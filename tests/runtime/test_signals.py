"""Signals arrive at any time, in particular while the main thread holds a lock."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tandemfeed.runtime.signals import StopSignal

ROOT = Path(__file__).resolve().parents[2]
# Forks PROCESSES, which do `work` until they have ended, and signals each at a random time; prints how each has ended.
SIGNALLED_AT_RANDOM = """
import json, os, random, signal, sys, time
{work}
chance, processes, statuses = random.Random(7), {{}}, []
for _ in range(40):
    ready, is_ready = os.pipe()
    process = os.fork()
    if not process:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
        work(lambda: os.write(is_ready, b"r"))
        os._exit(99)
    os.read(ready, 1)
    time.sleep(chance.uniform(0, 0.02))
    os.kill(process, signal.SIGTERM)
    processes[process] = None
give_up_at_s = time.monotonic() + 20
while processes and time.monotonic() < give_up_at_s:
    for process in list(processes):
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            del processes[process]
            statuses.append(os.waitstatus_to_exitcode(status))
    time.sleep(0.01)
for process in processes:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    statuses.append("did not end")
print(json.dumps(statuses))
"""


def statuses_of_signalled(work: str) -> list[int | str]:
    """How 40 processes ended that received SIGTERM at random times while they did `work`."""
    script = SIGNALLED_AT_RANDOM.format(work=work)
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    statuses: list[int | str] = json.loads(done.stdout)
    return statuses


WAITING = """
from tandemfeed.runtime.signals import StopSignal
def work(ready):
    stop = StopSignal()
    ready()
    while not {wait}:
        pass
    os._exit(0)
"""


@pytest.mark.parametrize("wait", ["stop.wait(0)", "stop.wait(1e-6)", "stop.is_set", "stop.wait()"])
def test_processes_in_a_tight_wait_end_whenever_the_signal_comes(wait: str) -> None:
    assert statuses_of_signalled(WAITING.format(wait=wait)) == [0] * 40


@pytest.fixture
def stop() -> object:
    with StopSignal() as made:
        yield made


def test_every_thread_that_waits_and_every_poll_sees_a_signal(stop: StopSignal) -> None:
    seen: list[bool] = []
    waiting = [threading.Thread(target=lambda: seen.append(stop.wait(30))) for _ in range(4)]
    for thread in waiting:
        thread.start()
    os.kill(os.getpid(), signal.SIGTERM)
    for thread in waiting:
        thread.join(30)
    assert seen == [True] * 4
    assert stop.wait() is True
    assert select.select([stop], [], [], 0)[0]


def test_it_remembers_which_signal_came_first(stop: StopSignal) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.number is signal.SIGINT


def test_a_wait_ends_at_its_limit(stop: StopSignal) -> None:
    assert not stop.wait(0.001)
    assert not stop.is_set


def test_any_thread_may_request_the_stop(stop: StopSignal) -> None:
    setting = threading.Thread(target=stop.set)
    setting.start()
    assert stop.wait(30)
    setting.join()


def test_handlers_are_restored_when_it_is_closed() -> None:
    former = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with StopSignal():
        assert signal.getsignal(signal.SIGTERM) not in former
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == former


def test_a_second_signal_can_end_the_process_immediately() -> None:
    work = """
from tandemfeed.runtime.signals import StopSignal
def work(ready):
    stop = StopSignal(second_ends=True)
    os.kill(os.getpid(), signal.SIGINT)
    ready()
    while True:
        pass
"""
    assert statuses_of_signalled(work) == [-signal.SIGTERM] * 40


def test_without_signals_it_can_be_made_in_any_thread() -> None:
    seen: list[bool] = []

    def make() -> None:
        with StopSignal(handles_signals=False) as stop:
            stop.set()
            seen.append(stop.wait())

    making = threading.Thread(target=make)
    making.start()
    making.join(30)
    assert seen == [True]
