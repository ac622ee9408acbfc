"""PDF, through pymupdf (AGPL or commercial). To use another library, replace this module.

What pymupdf gets wrong by itself is mended by `pdf_order` (columns, tables), `pdf_layout` (rows, doubled and vertical
text) and `pdf_repair` (characters), which know no pymupdf.
"""

from __future__ import annotations

import re
from typing import Any

from stages.parsers import pdf_bidi, pdf_layout, pdf_order, pdf_repair
from stages.parsers.document import Document, Drop, Heading, Refusal, Source, TextBuilder, described, one_line

MAX_PAGES = 200_000


def parse(content: bytes, source: Source) -> Document:
    """Raises Refusal: `damaged`, `password_required`, `unsupported_type`; Drop: `no_text_layer`."""
    import pymupdf

    if not content:
        raise Refusal("damaged", "the file is empty (0 bytes)")
    try:
        pdf = pymupdf.open(stream=content, filetype="pdf")
    except (RuntimeError, ValueError, pymupdf.mupdf.FzErrorBase) as error:
        if b"/Adobe.PubSec" in content:
            raise Refusal("password_required", "the PDF is encrypted for the owners of certificates") from error
        raise Refusal("damaged", f"the PDF cannot be opened: {error}") from error
    with pdf:
        _unlock(pdf, source)
        return _document(pdf, source)


def _unlock(pdf: Any, source: Source) -> None:
    if not pdf.is_pdf:  # pymupdf follows the content, whatever type it is told
        raise Refusal("type_mismatch", "the content is no PDF")
    if pdf.needs_pass and not any(pdf.authenticate(password) for password in source.options.passwords):
        tried = "none of `passwords` opens it" if source.options.passwords else "give its password in `passwords`"
        raise Refusal("password_required", f"the PDF is encrypted; {tried}")


def _document(pdf: Any, source: Source) -> Document:
    import pymupdf

    try:
        count = pdf.page_count
    except (RuntimeError, pymupdf.mupdf.FzErrorBase) as error:
        raise Refusal("damaged", f"the PDF's page tree is damaged: {error}") from error
    if count == 0:
        if pdf.is_repaired:
            raise Refusal("damaged", "the PDF has no pages that can be read; it may be cut off")
        raise Refusal("no_pages", "the PDF has no pages, or none that can be read")
    if count > MAX_PAGES:
        raise Refusal("damaged", f"the PDF claims {count} pages")
    out = TextBuilder()
    unreadable: list[int] = []
    read_by_ocr: list[int] = []
    for number in range(1, count + 1):
        start = out.length + (2 if out.length else 0)
        try:
            page = pdf[number - 1]
            text = _page_text(pdf, page)
            if not text and source.options.ocr == "auto" and _shows_something(page):
                text = _ocr(page, source.options.ocr_language)
                read_by_ocr.append(number)
        except (RuntimeError, ValueError, IndexError, pymupdf.mupdf.FzErrorBase) as error:
            if pdf_repair.out_of_memory(error):
                raise
            unreadable.append(number)
            text = ""
        out.block(text)
        out.page(number, start)
    if not out.length:
        if unreadable:
            raise Refusal("damaged", f"no page of the PDF can be read ({len(unreadable)} of {count} are damaged)")
        raise Drop("no_text_layer", "the PDF has no text layer: pictures or blank pages only (see the option `ocr`)")
    info = pdf.metadata or {}
    document = out.document(one_line(info.get("title")) or None)
    document.headings = _headings(pdf, document)
    document.metadata = described(
        author=info.get("author"),
        subject=info.get("subject"),
        keywords=info.get("keywords"),
        created=info.get("creationDate"),
        page_count=count,
        unreadable_pages=unreadable,
        ocr_pages=read_by_ocr,
        suspect_text=bool(doubt := pdf_repair.doubts(document.text)),
        suspect_because=doubt,
    )
    return document


def _page_text(pdf: Any, page: Any) -> str:
    import pymupdf

    # Without MEDIABOX_CLIP: what lies outside a wrong media box is still text.
    flags = pymupdf.TEXT_PRESERVE_LIGATURES | pymupdf.TEXT_PRESERVE_WHITESPACE
    content = page.get_textpage(flags=flags)
    plain = content.extractText()
    if not plain.strip():
        return ""
    codec = None
    if "\N{REPLACEMENT CHARACTER}" in plain:
        codec = next((c for font in page.get_fonts() if (c := pdf_repair.cmap_codec(font[5]))), None)
        if codec:
            # The bytes of the string, one a character.
            content = page.get_textpage(flags=flags | pymupdf.TEXT_CID_FOR_UNKNOWN_UNICODE)
    lines = [] if pdf_repair.needs_positions(plain) else _lines(content)
    if not lines or pdf_layout.overlap(lines):
        lines = _lines_by_character(content)
    return pdf_repair.mend(pdf_layout.arrange(lines, lambda: _rules(page)), codec).strip()


def _rules(page: Any) -> list[float]:
    """The y of lines drawn from left to right, and of the edges of long boxes, ascending."""
    boxes = (path["rect"] for path in page.get_cdrawings())
    return sorted(y for x0, y0, x1, y1 in boxes if x1 - x0 > 20 for y in {y0, y1})


def _lines(content: Any) -> list[pdf_order.Line]:
    blocks = enumerate(content.extractDICT()["blocks"])
    return [
        _line(line, number, "".join(span["text"] for span in line["spans"]))
        for number, block in blocks
        for line in block.get("lines", ())
    ]


def _lines_by_character(content: Any) -> list[pdf_order.Line]:
    """The same from the places of single characters; those that were drawn again in one place count once."""
    blocks = enumerate(content.extractRAWDICT()["blocks"])
    drawn = pdf_repair.Drawn()
    lines = []
    for number, block in blocks:
        for line in block.get("lines", ()):
            characters = []
            for span in line["spans"]:
                for c in span["chars"]:
                    x, y = c["origin"]
                    # Letters that share a glyph share its place: all but the first have no width.
                    if c["bbox"][2] - c["bbox"][0] < 0.01 or drawn.is_new(c["c"], x, y, span["size"]):
                        characters.append(pdf_bidi.Character(c["c"], c["bbox"][0], c["bbox"][2], x))
            text = pdf_repair.by_position(characters, upright=line["dir"][0] > 0.9)
            made = _line(line, number, text)
            if line["dir"][0] > 0.9 and text.strip():  # the box of what is left
                seen = [c for c in characters if not c.text.isspace()]
                made = made._replace(x0=min(c.left for c in seen), x1=max(c.right for c in seen))
            lines.append(made)
    return lines


def _line(line: dict[str, Any], number: int, text: str) -> pdf_order.Line:
    x0, y0, x1, y1 = line["bbox"]
    size = max((span["size"] for span in line["spans"]), default=0.0)
    return pdf_order.Line(text, x0, y0, x1, y1, size, tuple(line["dir"]), line["wmode"] == 1, number)


def _shows_something(page: Any) -> bool:
    return bool(page.get_images() or page.get_drawings() or page.first_annot)


def _ocr(page: Any, language: str) -> str:
    recognised = page.get_textpage_ocr(flags=0, language=language, dpi=300, full=True)
    return str(page.get_text(textpage=recognised)).strip()


def _headings(pdf: Any, document: Document) -> list[Heading]:
    """The outline's titles, where they are found on the pages that they point to."""
    found: list[Heading] = []
    ranges = {page.page: page for page in document.pages}
    position = 0
    for level, title, number, *_ in pdf.get_toc(simple=True):
        words = title.split()
        page = ranges.get(number)
        if not words or page is None:
            continue
        pattern = re.compile(r"\s+".join(re.escape(word) for word in words), re.IGNORECASE)
        match = pattern.search(document.text, max(page.start, position), page.end)
        if match:
            position = match.end()
            found.append(Heading(min(level, 100), match.group(), match.start(), match.end()))
    return found
