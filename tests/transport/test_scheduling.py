"""Settings of the schedulers and the garbage collector for a whole process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tandemfeed.transport.scheduling import (
    BACKGROUND_NICE,
    LAST_THREADS_MAX,
    MODERATE_NICE,
    SLICE_NS,
    SWITCH_INTERVAL_S,
    call_in_background,
    run_in_background,
    started_pool,
)

# Prints the slice of a thread in nanoseconds, and its nice value, from the struct sched_attr of sched_getattr(2).
THREADS_SLICE = """
import ctypes, os, platform, struct, threading
from tandemfeed.transport.scheduling import request_short_slices
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # this process may have inherited another policy
{first}
asked = request_short_slices()
def report():
    buffer = ctypes.create_string_buffer(48)
    number = {{"x86_64": 315, "aarch64": 275}}[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, 0, buffer, 48, 0) == 0
    attributes = struct.unpack("=IIQiIQQQ", buffer.raw)
    print(asked, attributes[5], attributes[3])
thread = threading.Thread(target=report)
thread.start()
thread.join()
"""


NICE = os.getpriority(os.PRIO_PROCESS, 0)


def kernel() -> tuple[int, ...]:
    """The numeric part of the kernel's version."""
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


def slice_of_a_thread(first: str = "") -> list[str]:
    """In a process that requested short turns: whether this succeeded, and slice and nice value of a thread."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS_SLICE.format(first=first)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux" or kernel() < (6, 12), reason="slices need Linux 6.12 or later")
def test_every_later_thread_has_short_turns_and_the_same_nice_value() -> None:
    assert slice_of_a_thread("os.nice(3)") == ["True", str(SLICE_NS), str(min(19, NICE + 3))]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has these policies")
def test_a_scheduling_policy_that_was_set_for_the_process_is_kept() -> None:
    asked, _, nice = slice_of_a_thread("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))")
    assert (asked, nice) == ("False", str(NICE))


def test_objects_made_before_steady_running_are_not_scanned_by_collections() -> None:
    script = (
        "import gc, sys\n"
        "from tandemfeed.transport.scheduling import tune_for_low_latency\n"
        "made = [[] for _ in range(10_000)]\n"
        "tune_for_low_latency()\n"
        "print(gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 1_000, gc.isenabled(), sys.getswitchinterval())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True", str(SWITCH_INTERVAL_S)]


LAST_THREADS = """
import os, threading, time
from tandemfeed.transport.scheduling import tune_for_low_latency
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # this process may have inherited another policy
NICE = os.getpriority(os.PRIO_PROCESS, 0)
tune_for_low_latency()
tune_for_low_latency()
last = [thread for thread in threading.enumerate() if thread.name.startswith("last-")]
give_up_at_s = time.monotonic() + 20
while any(os.sched_getscheduler(thread.native_id) != os.SCHED_BATCH for thread in last):
    assert time.monotonic() < give_up_at_s, "the threads do not yield"
assert {os.getpriority(os.PRIO_PROCESS, thread.native_id) for thread in last} == {NICE}, "a killed process would stay"
print(*sorted(str(os.sched_getaffinity(thread.native_id)) for thread in last), sep="|")
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


@pytest.mark.skipif(sys.platform != "linux" or kernel() < (6, 12), reason="slices need Linux 6.12 or later")
def test_each_processor_has_a_yielding_thread_that_ends_last() -> None:
    done = subprocess.run([sys.executable, "-c", LAST_THREADS], capture_output=True, text=True, check=True)
    threads, nice_of_main = done.stdout.splitlines()
    processors = sorted(os.sched_getaffinity(0))[:LAST_THREADS_MAX]
    assert threads.split("|") == sorted(str({processor}) for processor in processors)
    assert int(nice_of_main) == os.getpriority(os.PRIO_PROCESS, 0)


BACKGROUND = """
import os, threading
from tandemfeed.transport.scheduling import call_in_background, run_in_background
os.sched_setscheduler(0, os.{policy}, os.sched_param({priority}))  # this process may have inherited another policy
if os.geteuid() == 0:
    os.setuid(65534)  # nobody: raising a priority needs privileges that most processes do not have
def own(): return os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.sched_getscheduler(0)
def report(*found): print(*(text for nice, policy in found for text in (nice, policy == os.SCHED_BATCH)))
before = own()
in_background = call_in_background(own)
report(before, in_background, own())
run_in_background()
child = os.posix_spawn("/bin/sh", ["sh", "-c", "ps -o ni= -p $$ || cut -d ' ' -f 19 /proc/$$/stat"], os.environ)
os.waitpid(child, 0)
"""


def may_be_real_time() -> bool:
    """Whether this process may choose a real-time policy. Asked in a thread, which ends with the policy."""
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1)).result()
        except OSError:
            return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has nice values of threads")
@pytest.mark.parametrize(("policy", "priority"), [("SCHED_OTHER", 0), ("SCHED_RR", 1), ("SCHED_FIFO", 1)])
def test_work_in_the_background_yields_and_its_caller_keeps_its_priority(policy: str, priority: int) -> None:
    if priority and not may_be_real_time():
        pytest.skip("this process may not choose a real-time policy")
    script = BACKGROUND.replace("{policy}", policy).replace("{priority}", str(priority))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    own, waited_for, yielding = str(NICE), str(min(19, NICE + MODERATE_NICE)), str(min(19, NICE + BACKGROUND_NICE))
    assert done.stdout.split() == [own, "False", waited_for, "True", own, "False", yielding]


def own_nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has nice values of threads")
def test_threads_of_a_started_pool_keep_the_priority_of_the_thread_that_made_it() -> None:
    def nice_values(pool: ThreadPoolExecutor) -> set[int]:
        together = threading.Barrier(3)  # so that both threads work, and this one waits
        found = [pool.submit(lambda: (together.wait(), own_nice())[1]) for _ in range(2)]
        together.wait()
        return {each.result() for each in found}

    with started_pool(2, "started") as started, ThreadPoolExecutor(2) as late:
        yielding = min(19, NICE + MODERATE_NICE)
        assert call_in_background(own_nice) == yielding
        assert call_in_background(lambda: nice_values(started)) == {NICE}
        assert call_in_background(lambda: nice_values(late)) == {yielding}  # why it is needed


def test_the_result_and_the_error_of_work_in_the_background_reach_the_caller() -> None:
    assert call_in_background(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_in_background(lambda: 1 // 0)


def test_where_policies_are_refused_the_nice_value_is_raised_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_thread() -> tuple[bool, int]:
        return run_in_background(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    monkeypatch.setattr("tandemfeed.transport.scheduling._SCHED_SETATTR", {})  # as on an unknown machine
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(in_thread).result() == (False, min(19, NICE + 10))
