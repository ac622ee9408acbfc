"""Frames on a pipe: two sizes and two parts, `meta` (JSON) and `body` (bytes)."""

from __future__ import annotations

import os
import struct

HEAD = struct.Struct("<IQ")
SMALL = 1 << 16
READ_BYTES = 1 << 20


def head(meta: bytes, body: bytes | memoryview) -> bytes:
    return HEAD.pack(len(meta), len(body))


class FrameReader:
    """Frames from a blocking descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()

    def at_hand(self) -> bool:
        """Whether the next frame is here already, so that `read` does not wait."""
        return self._size() <= len(self._buffer)

    def read(self) -> tuple[bytes, bytes] | None:
        """The next frame, or None at the end of the stream. Raises EOFError within a frame."""
        while self._size() > len(self._buffer):
            data = os.read(self._descriptor, READ_BYTES)
            if not data and self._buffer:
                raise EOFError("the stream ends within a frame")
            if not data:
                return None
            self._buffer += data
        return take_frame(self._buffer)

    def _size(self) -> int:
        if len(self._buffer) < HEAD.size:
            return HEAD.size
        return HEAD.size + sum(HEAD.unpack_from(self._buffer))


def take_frame(buffer: bytearray) -> tuple[bytes, bytes] | None:
    """Take the first frame out of `buffer`; None while it is not complete."""
    if len(buffer) < HEAD.size:
        return None
    meta_size, body_size = HEAD.unpack_from(buffer)
    body, end = HEAD.size + meta_size, HEAD.size + meta_size + body_size
    if len(buffer) < end:
        return None
    with memoryview(buffer) as view:
        frame = bytes(view[HEAD.size : body]), bytes(view[body:end])
    del buffer[:end]
    return frame


def write_frame(descriptor: int, meta: bytes, body: bytes) -> None:
    """Write a frame to a blocking descriptor."""
    parts = [head(meta, body) + meta + body] if len(body) < SMALL else [head(meta, body) + meta, body]
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]
