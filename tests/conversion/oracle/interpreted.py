"""Runs a table in plain Python, message by message: slow and obvious. Tests compare the kernel with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.dead_letters import SAMPLES_KEPT_MAX, DeadLetter
from tandemfeed.adapter.conversion.state.state_kernels import SAMPLES_MAX
from tandemfeed.adapter.conversion.table.reasons import REFUSALS, Reason
from tandemfeed.adapter.conversion.table.table import Conversion, ConverterTable
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, frame_size
from tandemfeed.feedcore.documents.packet_numbers import filler_type
from tandemfeed.feedcore.documents.source_layout import SourceData, SourceField, SourceGroup, SourceMessageType
from tandemfeed.feedcore.replica.output.converter import Converted
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.sbe_header import SBE_MESSAGE_HEADER
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, unpack_source_header
from tests.conversion.oracle.interpreted_fields import needed_end, used_fields
from tests.conversion.oracle.interpreted_output import parts, room
from tests.conversion.oracle.interpreted_state import InterpretedState
from tests.conversion.oracle.interpreted_values import Entry, Refused, Scope, Walked

PLACED_MAX = 65_535


class InterpretedConverter:
    """`feedcore.replica.output.converter.Converter`, without a kernel."""

    def __init__(self, table: ConverterTable) -> None:
        self._table = table
        self._framing = table.source_format.framing
        self._state = InterpretedState(table)
        self._by_type: dict[int, list[tuple[SourceMessageType, list[Conversion]]]] = {}
        for conversion in table.conversions:
            known = self._by_type.setdefault(conversion.source.type_id, [])
            found = next((each for source, each in known if source is conversion.source), None)
            if found is None:
                known.append((conversion.source, found := []))
            found.append(conversion)
        self._types = {message.type_id for message in table.source_format.messages.values()}
        self.bad = dict.fromkeys(Reason, 0)
        self._letters: deque[DeadLetter] = deque(maxlen=SAMPLES_KEPT_MAX)
        self._sampled = 0  # number of samples from the packet being converted

    def counts(self) -> dict[str, int]:
        """Source messages so far that were not converted correctly, by reason."""
        return {reason.name.lower(): count for reason, count in self.bad.items()}

    def take_dead_letters(self) -> list[DeadLetter]:
        """As `CompiledConverter.take_dead_letters`."""
        taken = list(self._letters)
        self._letters.clear()
        return taken

    def check(self, datagram: bytes) -> bool:
        """See `Converter.check`."""
        if len(datagram) < SOURCE_HEADER_SIZE:
            return False
        position = SOURCE_HEADER_SIZE
        for _ in range(unpack_source_header(datagram).message_count):
            if position + self._framing.size_min > len(datagram):
                return False
            length = self._length(datagram, position)
            if length < self._framing.size_min:
                return False
            position += length
        return position == len(datagram)

    def _number(self, datagram: bytes, at: int, size: int) -> int:
        return int.from_bytes(datagram[at : at + size], "big" if self._framing.is_big_endian else "little")

    def _length(self, datagram: bytes, position: int) -> int:
        framing = self._framing
        length = self._number(datagram, position + framing.length.offset, framing.length.size)
        return length * framing.length_unit + framing.length_adds

    def convert(
        self, datagram: bytes, skip: int, count: int, out: NDArray[np.uint8], start: int, end: int
    ) -> Converted:
        """See `Converter.convert`."""
        if len(datagram) < SOURCE_HEADER_SIZE:
            return Converted(count, 0, start)
        position = SOURCE_HEADER_SIZE
        for _ in range(skip):
            if position + self._framing.size_min <= len(datagram):
                position += self._length(datagram, position)
        cursor, written, self._sampled = start, 0, 0
        for index in range(count):
            if position + self._framing.size_min > len(datagram):
                self.bad[Reason.TRUNCATED] += count - index
                return Converted(count, written, cursor)
            length = self._length(datagram, position)
            if length < self._framing.size_min or position + length > len(datagram):
                self._refuse(Reason.TRUNCATED, datagram, position, skip + index)
                self.bad[Reason.TRUNCATED] += count - index - 1
                return Converted(count, written, cursor)
            try:
                frames = self._message(datagram, position, length, index, end - cursor)
            except Refused as refused:
                self._refuse(refused.reason, datagram, position, skip + index)
                frames = []
            if frames is None:
                return Converted(index, written, cursor)
            for frame in frames:
                out[cursor : cursor + len(frame)] = np.frombuffer(frame, np.uint8)
                cursor += len(frame)
                written += 1
            position += length
        return Converted(count, written, cursor)

    def _refuse(self, reason: Reason, datagram: bytes, position: int, place: int) -> None:
        self.bad[reason] += 1
        if self._sampled < SAMPLES_MAX:
            self._sampled += 1
            self._letters.append(DeadLetter.of(datagram, position, place, reason, self._table.source_format))

    def _message(self, datagram: bytes, position: int, length: int, index: int, left: int) -> list[bytes] | None:
        """The output frames; None if they do not fit in `left` bytes."""
        framing = self._framing
        kind = self._number(datagram, position + framing.type.offset, framing.type.size)
        if kind == filler_type(self._table.source_format):
            return []
        found = self._choose(kind, length)
        if found is None:
            if kind not in self._types:
                raise Refused(Reason.UNKNOWN_TYPE)
            if kind in self._by_type:
                raise Refused(Reason.WRONG_LENGTH)
            self.bad[Reason.NOT_CONVERTED] += 1
            return []
        source, conversions = found
        version = 0
        if framing.version is not None:
            version = self._number(datagram, position + framing.version.offset, framing.version.size)
        block, walked = self._walk(source, conversions, datagram, position, length, version)
        header = unpack_source_header(datagram)
        sent_at_ns = header.sent_at_ns - (header.sent_at_ns >> 63 << 64)  # int64, with the same bits, as in a kernel
        packet = {
            "session": header.session,
            "sent_at_ns": sent_at_ns,
            "source_stream_id": header.source_stream_id,
        }
        scopes: list[tuple[Conversion, Scope]] = []
        need = 0
        body = position + framing.header_size
        for conversion in conversions:
            whole = Scope(conversion, datagram, body, block, walked, packet, index, version)
            for scope in self._scopes(whole, conversion):
                if scope.evaluate():
                    need += room(scope, conversion) if conversion.target else 0
                    scopes.append((conversion, scope))
        if need > left:
            if need > self._table.room:
                raise Refused(Reason.TOO_LARGE)
            return None
        frames = [self._act(conversion, scope, header.session) for conversion, scope in scopes]
        return [frame for frame in frames if frame]

    def _choose(self, kind: int, length: int) -> tuple[SourceMessageType, list[Conversion]] | None:
        for source, conversions in self._by_type.get(kind, ()):
            least = self._framing.header_size + (0 if self._framing.block_length else source.size)
            if source.parts or source.longer:
                if length >= max(least, self._framing.size_min):
                    return source, conversions
            elif length == source.frame_size:
                return source, conversions
        return None

    def _walk(
        self,
        source: SourceMessageType,
        conversions: list[Conversion],
        datagram: bytes,
        position: int,
        length: int,
        version: int,
    ) -> tuple[int | None, Walked]:
        """(block length, if messages have one; where groups' entries and texts are)."""
        framing, limit = self._framing, position + length
        block = None
        at = position + framing.header_size + source.size
        if framing.block_length is not None:
            block = self._number(datagram, position + framing.block_length.offset, framing.block_length.size)
            at = position + framing.header_size + block
            needed = [needed_end(each, None) for each in conversions]
            if block < max(needed) or block > PLACED_MAX or at > limit:
                raise Refused(Reason.WRONG_LENGTH)
        walked, at = self._walk_parts(source.parts, conversions, datagram, at, limit, version)
        if (source.parts or source.longer) and not source.longer and at != limit:
            raise Refused(Reason.WRONG_LENGTH)
        return block, walked

    def _walk_parts(
        self,
        parts: Sequence[SourceGroup | SourceData],
        conversions: list[Conversion],
        datagram: bytes,
        at: int,
        limit: int,
        version: int,
    ) -> tuple[Walked, int]:
        """(where groups' entries and texts are, where they end)."""
        walked = Walked()
        for part in parts:
            if part.since_version > version:
                walked.entries[part.name], walked.texts[part.name] = [], (at, 0)
            elif isinstance(part, SourceGroup):
                needed = [needed_end(each, part) for each in conversions]
                at, count, size = self._walk_group(part, datagram, at, limit, max(needed))
                entries = walked.entries[part.name] = []
                for _ in range(count):
                    inside, end = self._walk_parts(part.parts, conversions, datagram, at + size, limit, version)
                    entries.append(Entry(at, size, inside))
                    at = end
                    if at > limit:
                        raise Refused(Reason.WRONG_LENGTH)
            else:
                if at + part.header_size > limit:
                    raise Refused(Reason.WRONG_LENGTH)
                raw = datagram[at : at + part.length_kind.size]
                size = int.from_bytes(raw, "big" if part.is_big_endian else "little")
                walked.texts[part.name] = at + part.header_size, size
                at += part.header_size + size
                if size > part.maximum and any(id(part.text) in used_fields(each) for each in conversions):
                    raise Refused(Reason.WRONG_LENGTH)
            if at > limit:
                raise Refused(Reason.WRONG_LENGTH)
        return walked, at

    @staticmethod
    def _walk_group(group: SourceGroup, datagram: bytes, at: int, limit: int, needed: int) -> tuple[int, int, int]:
        if isinstance(group.count, int):
            return at, group.count, group.size
        if at + group.header_size > limit:
            raise Refused(Reason.WRONG_LENGTH)

        def number(offset: int, size: int) -> int:
            raw = datagram[at + offset : at + offset + size]
            return int.from_bytes(raw, "big" if group.is_big_endian else "little")

        count = number(group.count.offset, group.count.size)
        size, least = group.size, group.size
        if group.entry_size is not None:
            size, least = number(group.entry_size.offset, group.entry_size.size), needed
        if count > PLACED_MAX or size > PLACED_MAX or (count > 0 and size < least):
            raise Refused(Reason.WRONG_LENGTH)
        return at + group.header_size, count, size

    @staticmethod
    def _scopes(whole: Scope, conversion: Conversion) -> list[Scope]:
        """The message, or each entry that the conversion iterates over."""
        scopes = [whole]
        for group in (*conversion.within, *([conversion.each] if conversion.each else [])):
            scopes = [inner for scope in scopes for inner in scope.entries(group)]
        return scopes

    def _act(self, conversion: Conversion, scope: Scope, session: int) -> bytes:
        """Change state, then return the output frame; empty if there is none."""
        self._state.act(conversion, scope, session, self.bad)
        target, table = conversion.target, self._table
        if target is None or not all(scope.holds(guard) for guard in conversion.output_guards):
            return b""
        frame = bytearray(frame_size(target))
        variable = parts(scope, conversion.groups, conversion.data, scope.of_book, scope.level_count)
        OUTPUT_FRAME.pack_into(frame, 0, len(frame) + len(variable), scope.index)
        header = (target.block_length, target.template_id, table.schema_id, table.schema_version)
        SBE_MESSAGE_HEADER.pack_into(frame, OUTPUT_FRAME_SIZE, *header)
        scope.write_block(frame, PREFIX_SIZE, target.columns, conversion.writes)
        return bytes(frame) + variable

    def digests(self) -> NDArray[np.uint64]:
        """See `Converter.digests`."""
        return self._state.digests()

    def snapshot(self) -> bytes:
        """See `Converter.snapshot`; the same bytes as the kernel's."""
        return self._state.snapshot(None)

    def restore(self, snapshot: bytes) -> None:
        """See `Converter.restore`."""
        self._state.restore(snapshot)

    def snapshot_buckets(self, buckets: Sequence[int]) -> bytes:
        """See `Converter.snapshot_buckets`; the same bytes as the kernel's."""
        return self._state.snapshot(sorted(set(buckets)))

    def restore_buckets(self, data: bytes) -> None:
        """See `Converter.restore_buckets`."""
        self._state.restore_buckets(data)


__all__ = ["REFUSALS", "InterpretedConverter", "SourceField"]
