"""RTF, through striprtf."""

from __future__ import annotations

from stages.parsers.document import Document, Source
from stages.parsers.text import plain


def parse(content: bytes, source: Source) -> Document:
    from striprtf.striprtf import rtf_to_text

    # RTF is ASCII with escapes; what is not is kept as bytes are and decoded by the code page that the file names.
    text = rtf_to_text(content.decode("latin-1"), errors="replace")
    return Document(plain(_joined(text)).strip())


def _joined(text: str) -> str:
    """Characters beyond the BMP come as two escapes, one per surrogate."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
