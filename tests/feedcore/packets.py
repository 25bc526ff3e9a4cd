"""Output and source packets for codec tests, with hypothesis strategies."""

from __future__ import annotations

from hypothesis import strategies as st

from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OutputFlag, OutputPacket, encode_runs
from tandemfeed.feedcore.wire.position import SEQ_MAX, Run


def output_packet(
    *,
    epoch: int = 3,
    first: int = 101,
    first_input: int = 301,
    runs: tuple[tuple[int, int, list[bytes]], ...] = ((1, 501, [b"one", b"two"]),),
) -> OutputPacket:
    """A packet whose runs are (source_stream_id, first source_seq, message bodies, one for each source message)."""
    made, frames, seq = [], b"", 0
    for stream, first_source, bodies in runs:
        made.append(Run(epoch, first_input + seq, first + seq, stream, first_source, len(bodies), len(bodies)))
        seq += len(bodies)
        frames += b"".join(OUTPUT_FRAME.pack(4 + len(body), place) + body for place, body in enumerate(bodies))
    decided = tuple(made)
    return OutputPacket(
        OutputFlag.FROM_ACTIVE,
        7,
        1,
        2,
        20261121,
        epoch,
        first_input,
        first,
        seq,
        decided,
        11,
        12,
        encode_runs(decided) + frames,
    )


output_packets = st.builds(
    lambda epoch, first, first_input, runs: output_packet(
        epoch=epoch, first=first, first_input=first_input, runs=tuple(runs)
    ),
    st.integers(1, 2**32 - 1),
    st.integers(1, SEQ_MAX),
    st.integers(1, SEQ_MAX),
    st.lists(
        st.tuples(
            st.integers(0, 2**16 - 1),
            st.integers(1, SEQ_MAX),
            st.lists(st.binary(max_size=60), min_size=1, max_size=5),
        ),
        min_size=1,
        max_size=4,
    ),
)
