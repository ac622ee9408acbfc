"""Frames on a pipe: two sizes and two parts, `meta` (JSON) and `body` (bytes)."""

from __future__ import annotations

import struct
from typing import BinaryIO

HEAD = struct.Struct("<IQ")
SMALL = 1 << 16


def head(meta: bytes, body: bytes | memoryview) -> bytes:
    return HEAD.pack(len(meta), len(body))


def read_frame(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """The next frame of a blocking stream, or None at its end. Raises EOFError within a frame."""
    start = stream.read(HEAD.size)
    if not start:
        return None
    if len(start) < HEAD.size:
        raise EOFError("the stream ends within a frame")
    meta_size, body_size = HEAD.unpack(start)
    meta, body = stream.read(meta_size), stream.read(body_size)
    if len(meta) < meta_size or len(body) < body_size:
        raise EOFError("the stream ends within a frame")
    return meta, body


def write_frame(stream: BinaryIO, meta: bytes, body: bytes) -> None:
    """Write a frame to an unbuffered stream."""
    parts = [head(meta, body) + meta + body] if len(body) < SMALL else [head(meta, body) + meta, body]
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[stream.write(view) :]
