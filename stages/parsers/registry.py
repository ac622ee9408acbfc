"""Which function parses which media type, and the libraries that it loads."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from stages.parsers.document import Parser, Refusal

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


class Entry(NamedTuple):
    path: str
    """`module:function`, a Parser."""
    imports: tuple[str, ...] = ()
    """Libraries that the function imports when it is called; the worker loads them before a document's clock starts."""


PARSERS: dict[str, Entry] = {
    "application/pdf": Entry("stages.parsers.pdf:parse", ("pymupdf",)),
    DOCX: Entry("stages.parsers.docx:parse", ("lxml.etree",)),
    PPTX: Entry("stages.parsers.pptx:parse", ("pptx",)),
    XLSX: Entry("stages.parsers.xlsx:parse", ("openpyxl",)),
    "text/html": Entry("stages.parsers.html:parse", ("lxml.html", "trafilatura")),
    "text/markdown": Entry("stages.parsers.markdown:parse", ("markdown_it", "yaml")),
    "application/epub+zip": Entry("stages.parsers.epub:parse", ("lxml.html",)),
    "message/rfc822": Entry("stages.parsers.eml:parse", ("lxml.html",)),
    "application/rtf": Entry("stages.parsers.rtf:parse", ("striprtf.striprtf",)),
    "text/csv": Entry("stages.parsers.delimited:parse"),
    "text/tab-separated-values": Entry("stages.parsers.delimited:parse"),
    "application/xml": Entry("stages.parsers.xml:parse", ("lxml.etree",)),
    "text/x-rst": Entry("stages.parsers.plain:parse_rst"),
    "text/plain": Entry("stages.parsers.plain:parse"),
}

ALIASES = {
    "application/xhtml+xml": "text/html",
    "text/xml": "application/xml",
    "text/rtf": "application/rtf",
    "text/x-markdown": "text/markdown",
    "application/x-pdf": "application/pdf",
    "application/csv": "text/csv",
}

LIBRARIES = (
    "charset-normalizer",
    "lxml",
    "markdown-it-py",
    "openpyxl",
    "pymupdf",
    "python-pptx",
    "pyyaml",
    "striprtf",
    "trafilatura",
)
"""Distributions whose version decides the text."""


def load(entry: Entry) -> Parser:
    """Import the function at `entry`, and the libraries that it needs. Raises Refusal (`missing_library`)."""
    module, _, function = entry.path.partition(":")
    try:
        for name in entry.imports:
            importlib.import_module(name)
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        message = f"{entry.path} cannot be loaded: {error}; install what it needs, or name another one in `parsers`"
        raise Refusal("missing_library", message) from error
    if not callable(found):
        raise Refusal("missing_library", f"{entry.path} is not a function; name one in `parsers`")
    return found


def versions() -> dict[str, str]:
    """Distribution -> version of the parsing libraries that are installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
