"""Compiled walks over the records of a capture, from block to UDP payload.

They read what nearly every frame is: Ethernet, VLAN tags, Linux cooked, raw IP or loopback; IPv4, or IPv6 without
extension headers; whole UDP datagrams. They stop before everything else, which `formats.capture` then reads.
"""

from __future__ import annotations

import numpy as np

from tandemfeed.adapter.conversion.formats.captures import capture as model
from tandemfeed.adapter.conversion.formats.captures import capture_file as file_model
from tandemfeed.adapter.conversion.kernel.unaligned import LOADS, STORES
from tandemfeed.adapter.convert_command.captures.keys import FLAG, KEY_SIZE, PORT, number_of
from tandemfeed.adapter.convert_command.captures.rows import AT_NS, FLOW, FRAME, SIZE, START
from tandemfeed.adapter.kernel_cache import compiled, compiled_part

u16, u16be, u32, u32be = (LOADS[name] for name in ("load_u16", "load_u16be", "load_u32", "load_u32be"))
load_i64, store_8, store_16, store_64 = LOADS["load_i64"], STORES["store_8"], STORES["store_16"], STORES["store_64"]

# Elements of the walk's settings and counts.
IS_BIG_ENDIAN, UNIT_NS, LINK = 0, 1, 2
FRAMES, OTHERS = 0, 1
# Columns of an interface's row in pcapng.
TICKS_PER_SECOND, OFFSET_NS, INTERFACE_LINK = 0, 1, 2
TICKS_PER_SECOND_MAX, SECONDS_MAX = 1_000_000_000, 1 << 32  # so that no product exceeds 64 bits

ETHERNET, COOKED, COOKED_2 = model.LINK_ETHERNET, model.LINK_COOKED, model.LINK_COOKED_2
RAW, LOOPBACK, TAGS = model.LINKS_RAW, model.LINKS_LOOPBACK, model.VLAN_TAGS
IPV4, IPV6, UDP = model.IPV4, model.IPV6, model.UDP
FRAGMENT = model.IPV4_MORE_FRAGMENTS | model.IPV4_FRAGMENT_OFFSET
IPV4_SIZE, IPV6_SIZE, UDP_SIZE = 20, 40, 8
SIZE_MAX, BEGINNINGS = file_model.SIZE_MAX, tuple(file_model.PCAP_MAGICS)
ENHANCED, SECTION, INTERFACE = file_model.ENHANCED_PACKET, file_model.SECTION_HEADER, file_model.INTERFACE
OLD, SIMPLE = file_model.OLD_PACKET, file_model.SIMPLE_PACKET

OTHER, WHOLE, LEFT = 0, 1, 2  # what a frame has: no UDP datagram, one, or something to leave to Python


@compiled_part
def network_layer(data, at, end, link):  # type: ignore[no-untyped-def]
    """(type, place) of the network-layer packet of a frame; type -1: left to Python."""
    if link in (ETHERNET, COOKED):
        at += 12 if link == ETHERNET else 14
        while at + 2 <= end:
            kind = u16be(data, at)
            if kind not in TAGS:
                return kind, at + 2
            at += 4
        return np.int64(-1), at
    if link == COOKED_2:
        return (u16be(data, at), at + 20) if at + 20 <= end else (np.int64(-1), at)
    if link in LOOPBACK:
        at += 4
    elif link not in RAW:
        return np.int64(0), at
    if at >= end:
        return np.int64(-1), at
    return np.int64(IPV4 if data[at] >> 4 == 4 else IPV6), at


@compiled_part
def udp_segment(data, at, end, link):  # type: ignore[no-untyped-def]
    """(what the frame has, place of the UDP header, place of the destination's address, size of the address)."""
    kind, at = network_layer(data, at, end, link)
    if kind == IPV4:
        if at + IPV4_SIZE > end:
            return LEFT, at, at, 0
        if data[at + 9] != UDP:
            return OTHER, at, at, 0
        if u16be(data, at + 6) & FRAGMENT:
            return LEFT, at, at, 0
        segment, address, size = at + 4 * (np.int64(data[at]) & 15), at + 16, 4
    elif kind == IPV6:
        if at + IPV6_SIZE > end or data[at + 6] != UDP:
            return LEFT, at, at, 0
        segment, address, size = at + IPV6_SIZE, at + 24, 16
    else:
        return (LEFT if kind < 0 else OTHER), at, at, 0
    if segment + UDP_SIZE > end or u16be(data, segment + 4) < UDP_SIZE or segment + u16be(data, segment + 4) > end:
        return LEFT, at, at, 0  # it is cut off
    return WHOLE, segment, address, size


@compiled_part
def take_frame(data, at, end, link, rows, row, keys, slots, key_counts):  # type: ignore[no-untyped-def]
    """Fill in a row by a frame; returns what the frame has, LEFT also if there is no room for its destination."""
    what, segment, address, size = udp_segment(data, at, end, link)
    if what == WHOLE:
        key = key_counts[0] * KEY_SIZE
        store_64(keys, key, u32(data, address) if size == 4 else load_i64(data, address))
        store_64(keys, key + 8, 0 if size == 4 else load_i64(data, address + 8))
        store_16(keys, key + PORT, u16(data, segment + 2))  # the row's other bytes are always zero
        store_8(keys, key + FLAG, size)
        flow = number_of(keys, slots, key_counts)
        if flow < 0:
            return LEFT
        rows[row, START] = segment + UDP_SIZE
        rows[row, SIZE] = u16be(data, segment + 4) - UDP_SIZE
        rows[row, FLOW] = flow
    return what


@compiled_part
def is_beginning(data, at):  # type: ignore[no-untyped-def]
    """True if another pcap file may begin here."""
    return u32(data, at) in BEGINNINGS or u32be(data, at) in BEGINNINGS


@compiled(nogil=True)
def walk_pcap(data, at, end, settings, rows, keys, slots, key_counts, counts):  # type: ignore[no-untyped-def]
    """Walk over the whole records of a pcap file; returns (where it stopped, rows, True if more bytes help).

    It stops where a record is not whole, not readable here, or where there is no room for another row or destination.

    Args:
        counts: FRAMES and OTHERS so far, which it increases.
    """
    row, is_big, unit, link = 0, settings[IS_BIG_ENDIAN], settings[UNIT_NS], settings[LINK]
    while row < rows.shape[0]:
        if at + 16 > end:
            return at, row, True
        size = u32be(data, at + 8) if is_big else u32(data, at + 8)
        if size > SIZE_MAX or is_beginning(data, at):
            break
        if at + 16 + size > end:
            return at, row, True
        what = take_frame(data, at + 16, at + 16 + size, link, rows, row, keys, slots, key_counts)
        if what == LEFT:
            break
        counts[FRAMES] += 1
        if what == WHOLE:
            seconds = u32be(data, at) if is_big else u32(data, at)
            fraction = u32be(data, at + 4) if is_big else u32(data, at + 4)
            rows[row, AT_NS] = seconds * 1_000_000_000 + fraction * unit
            rows[row, FRAME] = counts[FRAMES]
            row += 1
        else:
            counts[OTHERS] += 1
        at += 16 + size
    return at, row, False


@compiled(nogil=True)
def walk_pcapng(  # type: ignore[no-untyped-def]
    data, at, end, settings, interfaces, interface_count, rows, keys, slots, key_counts, counts
):
    """Walk over the whole blocks of a pcapng section; see `walk_pcap`. It stops before sections and interfaces."""
    row, is_big = 0, settings[IS_BIG_ENDIAN]
    while row < rows.shape[0]:
        if at + 12 > end:
            return at, row, True
        kind = u32be(data, at) if is_big else u32(data, at)
        block = u32be(data, at + 4) if is_big else u32(data, at + 4)
        if kind in (SECTION, INTERFACE, OLD, SIMPLE):
            break
        if block < 12 or block % 4 or block > SIZE_MAX:
            break
        if at + block > end:
            return at, row, True
        if kind == ENHANCED:
            if block < 32:
                break
            number = u32be(data, at + 8) if is_big else u32(data, at + 8)
            high = u32be(data, at + 12) if is_big else u32(data, at + 12)
            low = u32be(data, at + 16) if is_big else u32(data, at + 16)
            size = u32be(data, at + 20) if is_big else u32(data, at + 20)
            if number >= interface_count or 32 + size > block or high >> 31:
                break
            per_second = interfaces[number, TICKS_PER_SECOND]
            ticks = high << 32 | low
            if per_second > TICKS_PER_SECOND_MAX or ticks // per_second > SECONDS_MAX:
                break
            begin = at + 28
            what = take_frame(
                data, begin, begin + size, interfaces[number, INTERFACE_LINK], rows, row, keys, slots, key_counts
            )
            if what == LEFT:
                break
            counts[FRAMES] += 1
            if what == WHOLE:
                rest_ns = ticks % per_second * 1_000_000_000 // per_second
                rows[row, AT_NS] = ticks // per_second * 1_000_000_000 + rest_ns + interfaces[number, OFFSET_NS]
                rows[row, FRAME] = counts[FRAMES]
                row += 1
            else:
                counts[OTHERS] += 1
        at += block
    return at, row, False
