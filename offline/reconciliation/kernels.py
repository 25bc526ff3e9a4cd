"""The compiled loop over the runs and messages of output packets."""

from __future__ import annotations

import numpy as np
from numba import types

from tandemfeed.feedcore.wire import output_packet
from tandemfeed.feedcore.wire.output_packet import (
    FRAME_LAYOUT,
    OUTPUT_FRAME_SIZE,
    OUTPUT_HEADER_SIZE,
    RUN_FLAG_SOURCE_GAP,
    RUN_LAYOUT,
    RUN_SIZE,
)
from tandemfeed.spark_feed.compiling import compiler_for

DATA = types.Array(types.uint8, 1, "C", readonly=True)
NUMBERS = types.Array(types.int64, 2, "C")
DIGESTS = types.Array(types.uint64, 1, "C")
COUNTS = types.Array(types.int64, 1, "C")

# Rows of `packets`: one column per packet.
START, SIZE, RUN_COUNT, FIRST_INPUT, FIRST_MESSAGE, PACKET_ROWS = range(6)
# Rows of `runs`: one column per run, without what was replaced or repeated.
STREAM, FIRST_SOURCE, SOURCE_COUNT, IS_GAP, RUN_ROWS = range(5)
# Elements of `counts`.
RUNS, MESSAGES, REPLACED, REPEATED, NEXT_INPUT, COUNT_SIZE = range(6)

RUN_STREAM, RUN_SOURCES, RUN_MESSAGES, RUN_FLAGS, RUN_FIRST = (
    RUN_LAYOUT.offsets[name]
    for name in ("source_stream_id", "source_count", "message_count", "flags", "first_source_seq")
)
LENGTH, SOURCE_OFFSET = FRAME_LAYOUT.offsets["frame_length"], FRAME_LAYOUT.offsets["source_offset"]
NUMBER_SIZE = 8
# Odd constants with many bits (of the hash function xxHash64), so that products spread over all 64 bits.
PRIME_1, PRIME_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
HALF = np.uint64(32)

_compiled = compiler_for(__file__, output_packet.__file__)


@_compiled(types.int64(DATA, NUMBERS, types.int64, NUMBERS, COUNTS, DIGESTS, COUNTS))
def digest_packets(data, packets, limit_input, runs, seqs, digests, counts):  # type: ignore[no-untyped-def]
    """Digest the messages of packets of one channel and epoch; returns 0, or -(i + 1) if packet i is malformed.

    A digest covers everything that copies of a message must have in common: its numbers, and its bytes after the
    frame header, which depends on how messages were divided into packets.

    Args:
        limit_input: decisions from this `input_seq` on were replaced by a newer epoch.
        runs, seqs, digests: receive the runs, and the number and digest of each message.
        counts: elements as above; NEXT_INPUT is kept from call to call, and what is before it is a repetition.
    """
    counts[RUNS] = counts[MESSAGES] = counts[REPLACED] = counts[REPEATED] = 0
    for packet in range(packets.shape[1]):
        start = packets[START, packet]
        end = start + packets[SIZE, packet]
        run = start + OUTPUT_HEADER_SIZE
        at = run + packets[RUN_COUNT, packet] * RUN_SIZE
        input_seq, seq = packets[FIRST_INPUT, packet], packets[FIRST_MESSAGE, packet]
        if at > end:
            return -(packet + 1)
        for _ in range(packets[RUN_COUNT, packet]):
            stream = np.int64(data[run + RUN_STREAM]) | np.int64(data[run + RUN_STREAM + 1]) << 8
            sources = np.int64(data[run + RUN_SOURCES]) | np.int64(data[run + RUN_SOURCES + 1]) << 8
            messages = np.int64(data[run + RUN_MESSAGES]) | np.int64(data[run + RUN_MESSAGES + 1]) << 8
            first_source = np.int64(0)
            for place in range(NUMBER_SIZE):
                first_source |= np.int64(data[run + RUN_FIRST + place]) << (8 * place)
            first_kept = max(input_seq, counts[NEXT_INPUT])
            end_kept = min(input_seq + sources, limit_input)
            if first_kept < end_kept:
                found = counts[RUNS]
                runs[STREAM, found] = stream
                runs[FIRST_SOURCE, found] = first_source + first_kept - input_seq
                runs[SOURCE_COUNT, found] = end_kept - first_kept
                runs[IS_GAP, found] = data[run + RUN_FLAGS] & RUN_FLAG_SOURCE_GAP
                counts[RUNS] += 1
            for _ in range(messages):
                if at + OUTPUT_FRAME_SIZE > end:
                    return -(packet + 1)
                size = np.int64(data[at + LENGTH]) | np.int64(data[at + LENGTH + 1]) << 8
                if size < OUTPUT_FRAME_SIZE or at + size > end:
                    return -(packet + 1)
                offset = np.int64(data[at + SOURCE_OFFSET]) | np.int64(data[at + SOURCE_OFFSET + 1]) << 8
                if input_seq + offset >= limit_input:
                    counts[REPLACED] += 1
                elif input_seq + offset < first_kept:
                    counts[REPEATED] += 1
                else:
                    digest = np.uint64(seq) * PRIME_1 + np.uint64(stream)
                    digest = (digest ^ (digest >> HALF)) * PRIME_2 + np.uint64(first_source + offset)
                    digest = (digest ^ (digest >> HALF)) * PRIME_1
                    word, bits = np.uint64(0), 0
                    for place in range(at + OUTPUT_FRAME_SIZE, at + size):
                        word |= np.uint64(data[place]) << np.uint64(bits)
                        bits += 8
                        if bits == 64:
                            digest = (digest ^ word) * PRIME_1
                            digest ^= digest >> HALF
                            word, bits = np.uint64(0), 0
                    digest = (digest ^ word) * PRIME_2 + np.uint64(size)
                    digest = (digest ^ (digest >> HALF)) * PRIME_1
                    seqs[counts[MESSAGES]] = seq
                    digests[counts[MESSAGES]] = digest ^ (digest >> HALF)
                    counts[MESSAGES] += 1
                seq += 1
                at += size
            input_seq += sources
            run += RUN_SIZE
        counts[NEXT_INPUT] = max(counts[NEXT_INPUT], min(input_seq, limit_input))
    return 0
