"""The client's use of the message model: parsed when first needed, since many applications only pass payloads on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedcore.documents.message_model import MessageModel, load_message_model
from feedcore.sbe.messages import MessageType


class Decoder:
    """Decodes the feed's output messages.

    Args:
        message_model: the SBE message schema (XML) that the administration server granted.
        document: what to call it in errors.
    """

    def __init__(self, message_model: bytes, document: str) -> None:
        self._xml = message_model
        self._document = document

    @cached_property
    def model(self) -> MessageModel:
        """The parsed message model."""
        return load_message_model(self._xml, self._document)

    def arrays(self, frames: memoryview) -> Iterator[tuple[MessageType, NDArray[np.void]]]:
        """Structured views of consecutive messages of one template each, in order."""
        return self.model.arrays(frames)

    def message(self, frame: memoryview) -> tuple[str, Mapping[str, Any]] | None:
        """One framed message as (name, fields); None if it is of another schema or not in the model."""
        return next(self.model.decode(frame), None)
