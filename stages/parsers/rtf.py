"""RTF, through striprtf."""

from __future__ import annotations

import re

from stages.parsers.document import Document, Source, described
from stages.parsers.text import plain

CODE_PAGE = re.compile(r"\\ansicpg\d+")
INFO = re.compile(r"\{\\(title|author|subject|keywords)\b([^{}]*)\}")


def parse(content: bytes, source: Source) -> Document:
    from striprtf.striprtf import rtf_to_text

    # RTF is ASCII with escapes; what is not is kept as bytes are and decoded by the code page that the file names.
    rtf = content.decode("latin-1")

    def text_of(source: str) -> str:
        return plain(_joined(rtf_to_text(source, errors="replace"))).strip()

    code_page = CODE_PAGE.search(rtf)
    start = r"{\rtf1" + (code_page.group() if code_page else "")
    info = {name: text_of(start + value + "}") for name, value in INFO.findall(rtf)}
    title = info.pop("title", None)
    return Document(text_of(rtf), title or None, described(**info))


def _joined(text: str) -> str:
    """Characters beyond the BMP come as two escapes, one per surrogate."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
