"""XML of no known kind: the text between the tags."""

from __future__ import annotations

import io

from stages.parsers.container import refuse_entities
from stages.parsers.document import Document, Source, TextBuilder, one_line
from stages.parsers.text import decode, plain


def parse(content: bytes, source: Source) -> Document:
    """Raises Refusal (`xml_entities`) for a document that declares entities; what is not well-formed stays as it is."""
    from lxml import etree

    refuse_entities(io.BytesIO(content))
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    try:
        root = etree.fromstring(content, parser)
    except etree.XMLSyntaxError:
        text, encoding = decode(content)
        return Document(plain(text), metadata={"encoding": encoding})
    out = TextBuilder()
    for text in root.itertext():
        out.block(one_line(text), "\n")
    return out.document()
