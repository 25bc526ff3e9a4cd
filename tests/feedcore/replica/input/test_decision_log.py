"""The decision log returns decisions that continue the given position without a gap, or else a snapshot is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.feedcore.replica.input.decision_log import DecisionLog, DecisionLogTooShort
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.position import MessageStreamState, Run

LINEAGE = Lineage().opened(1, 1, 1)


def history(counts: list[tuple[int, int, int]]) -> Iterator[tuple[Run, MessageStreamState]]:
    """Runs of (source stream, source messages, messages), each with the position after it."""
    next_input, next_seq, next_source = 1, 1, {1: 1, 2: 1}
    for stream, source_count, message_count in counts:
        run = Run(1, next_input, next_seq, stream, next_source[stream], source_count, message_count)
        next_input += source_count
        next_seq += message_count
        next_source[stream] += source_count
        yield run, MessageStreamState(1, next_input, next_seq, dict(next_source))


def test_a_missing_decision_without_messages_before_the_log_still_requires_a_snapshot() -> None:
    (_, before), (silent, after) = history([(1, 1, 1), (2, 1, 0)])
    log = DecisionLog()
    log.restart(after.next_input_seq)
    assert silent.end_message_seq == before.next_message_seq
    with pytest.raises(DecisionLogTooShort, match="the log begins at input_seq 3, after 2"):
        log.since(before, LINEAGE)
    assert log.since(after, LINEAGE).reply().runs == ()


def test_a_position_that_contradicts_the_logs_numbers_requires_a_snapshot() -> None:
    (first, _), (second, _) = history([(1, 2, 1), (2, 1, 1)])
    log = DecisionLog()
    log.append(first)
    log.append(second)
    with pytest.raises(DecisionLogTooShort, match="is at message_seq 2, not 3"):
        log.since(MessageStreamState(1, 3, 3, {1: 3, 2: 1}), LINEAGE)


def test_a_position_outside_the_logs_history_requires_a_snapshot() -> None:
    (first, after), (second, _) = history([(1, 2, 1), (2, 1, 1)])
    log = DecisionLog()
    log.append(first)
    log.append(second)
    with pytest.raises(DecisionLogTooShort, match="input_seq 3 of epoch 2 is not in the history"):
        log.since(replace(after, epoch=2), LINEAGE)
    assert log.since(after, LINEAGE).reply().runs == (second,)


def test_a_position_inside_a_run_gets_the_whole_run() -> None:
    (first, _), (second, _) = history([(1, 3, 3), (1, 1, 1)])
    log = DecisionLog()
    log.append(first)
    log.append(second)
    assert log.since(MessageStreamState(1, 2, 2, {1: 2}), LINEAGE).reply().runs == (first, second)


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 3), st.integers(0, 3)), max_size=20),
    st.integers(0, 20),
    st.integers(1, 8),
    st.integers(0, 20),
)
def test_a_log_returns_exactly_what_follows_a_position_of_its_history_or_refuses(
    counts: list[tuple[int, int, int]], restarted_at: int, count_max: int, asked_at: int
) -> None:
    decided = list(history(counts))
    positions = [MessageStreamState(1, 1, 1, {1: 1, 2: 1}), *(position for _, position in decided)]
    runs = [run for run, _ in decided]
    restarted_at, asked_at = min(restarted_at, len(runs)), min(asked_at, len(runs))
    log = DecisionLog(count_max)
    log.restart(positions[restarted_at].next_input_seq)
    for run in runs[restarted_at:]:
        log.append(run)
    is_remembered = asked_at >= max(restarted_at, len(runs) - count_max)
    if is_remembered:
        assert log.since(positions[asked_at], LINEAGE).reply().runs == tuple(runs[asked_at:])
    else:
        with pytest.raises(DecisionLogTooShort):
            log.since(positions[asked_at], LINEAGE)


def test_a_position_that_a_full_log_has_forgotten_requires_a_snapshot() -> None:
    decided = list(history([(1, 1, 1), (2, 1, 1), (1, 1, 1)]))
    log = DecisionLog(count_max=2)
    for run, _ in decided:
        log.append(run)
    with pytest.raises(DecisionLogTooShort, match="the log begins at input_seq 2, after 1"):
        log.since(MessageStreamState(1, 1, 1, {1: 1, 2: 1}), LINEAGE)
    assert log.since(decided[0][1], LINEAGE).reply().runs == tuple(run for run, _ in decided[1:])


def test_decisions_from_before_a_restart_of_the_log_contradict_no_position() -> None:
    ((run, _),) = history([(1, 2, 3)])
    log = DecisionLog()
    log.append(run)
    log.restart(1)
    assert log.since(MessageStreamState(1, 1, 9, {1: 1, 2: 1}), LINEAGE).reply().runs == ()
