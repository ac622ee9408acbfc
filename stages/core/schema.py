"""Columns that stages, stores and users build on, and the identities in them."""

from __future__ import annotations

import hashlib

import pyarrow as pa

PAGES = pa.list_(pa.struct([("page", pa.int32()), ("start", pa.int64()), ("end", pa.int64())]))
"""Page map: page number (from 1) and the half-open range of characters of `text` that stands on it."""

HEADINGS = pa.list_(
    pa.struct([("level", pa.int8()), ("text", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
)
"""Headings in reading order: level (1 is the highest) and the range of characters of `text` that the heading fills."""

DOCUMENTS = pa.schema(
    [
        ("doc_id", pa.string()),
        ("uri", pa.string()),
        ("content_hash", pa.string()),
        ("media_type", pa.string()),
        ("size_bytes", pa.int64()),
        ("modified_at", pa.timestamp("us", tz="UTC")),
        ("title", pa.string()),
        ("text", pa.string()),
        ("metadata", pa.string()),  # a JSON object
        ("pages", PAGES),
        ("headings", HEADINGS),
    ]
)

CONTENT = pa.field("content", pa.large_binary())
"""A source's bytes: there between `read` and `parse`, null where the reader delivered text already."""

CHUNKS = pa.schema(
    [
        ("chunk_id", pa.string()),
        ("doc_id", pa.string()),
        ("uri", pa.string()),
        ("chunk_index", pa.int32()),
        ("text", pa.string()),
        ("start", pa.int64()),  # characters (code points) of the document's text
        ("end", pa.int64()),
        ("page_first", pa.int32()),  # null where the format has no pages
        ("page_last", pa.int32()),
        ("heading_path", pa.list_(pa.string())),
        ("n_tokens", pa.int32()),  # null where no tokenizer is named
    ]
)


def embedding_type(dimensions: int) -> pa.DataType:
    """The type of an `embedding` column: a fixed-size list of float32."""
    return pa.list_(pa.float32(), dimensions)


def doc_id(uri: str) -> str:
    """32 hexadecimal digits of the SHA-256 of the source's URI: the same on any machine."""
    return hashlib.sha256(uri.encode()).hexdigest()[:32]


def content_hash(content: bytes) -> str:
    """SHA-256 of a source's bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def chunk_id(document: str, start: int, text: str) -> str:
    """32 hexadecimal digits over a chunk's document, position and text."""
    return hashlib.sha256(f"{document}\0{start}\0{text}".encode()).hexdigest()[:32]
