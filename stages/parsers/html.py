"""HTML: the main content or the whole page, as blocks with headings and a line per table row.

The main content is what the page itself marks as such (main, role="main", an only article); where it marks nothing,
trafilatura finds it.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from stages.parsers.document import Document, Source, TextBuilder, described, one_line, row
from stages.parsers.text import decode, plain

NEARLY_NOTHING = 200
FAIR_SHARE = 0.2
"""A main content that was guessed is believed from so many characters and such a share of the page."""

NOTE = 50
"""A main content that the page marks as such is believed from so many characters."""

DECLARED = re.compile(
    rb"""<meta[^>]{0,300}?charset\s*=\s*["']?\s*([\w-]+)|<\?xml[^>]{0,200}?encoding=["']([\w-]+)""", re.I
)
TOO_DEEP = "Excessive depth"
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")

SKIPPED = frozenset(
    (
        "script",
        "style",
        "noscript",
        "template",
        "head",
        "iframe",
        "object",
        "embed",
        "svg",
        "math",
        "canvas",
        "audio",
        "video",
        "select",
        "datalist",
    )
)
BLOCKS = frozenset(
    (
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "center",
        "dd",
        "details",
        "dialog",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "frameset",
        "header",
        "hr",
        "html",
        "legend",
        "li",
        "main",
        "menu",
        "nav",
        "ol",
        "option",
        "p",
        "pre",
        "section",
        "summary",
        "ul",
        "title",
        "list",
        "item",
        "quote",
        "row",
        "table",
        "caption",
        "thead",
        "tbody",
        "tfoot",
    )
)
"""HTML's block elements, and those of trafilatura's tree."""

ITEMS = frozenset(("li", "item", "dt", "dd", "option"))
INLINE_PARENTS = frozenset(("p", "item", "cell", "head", "quote", "hi", "ref"))
MAIN = "main-content"
ASIDE_TAGS = frozenset(("nav", "aside", "footer"))
ASIDE_ROLES = frozenset(("navigation", "complementary", "contentinfo", "search"))
PERMALINKS = frozenset("¶§#🔗")
"""Links from a heading to itself."""

# Stand for white space that trafilatura would fold.
KEPT = {"\n": "\ue0a0", " ": "\ue0a1", "\t": "\ue0a2"}
KEEP = str.maketrans(KEPT)
RESTORE = str.maketrans({mark: blank for blank, mark in KEPT.items()})

LEVELS = {f"h{level}": level for level in range(1, 7)}


def parse(content: bytes, source: Source) -> Document:
    root, encoding = tree(content)
    out = _main_text(root) if source.options.html == "main" else _text_of(root)
    metadata = described(
        encoding=encoding,
        language=root.get("lang") or root.get("{http://www.w3.org/XML/1998/namespace}lang"),
        author=_meta(root, "author"),
        description=_meta(root, "description"),
    )
    return out.document(_title(root, out), metadata)


def _main_text(root: Any) -> TextBuilder:
    """The main content; the page without its asides, or as a whole, where next to nothing else is left."""
    marked = _text_of(_marked_content(root), asides=False)
    if marked.length >= NOTE:
        return marked
    main, page = _text_of(_main_content(root)), _text_of(root, asides=False)
    if main.length >= FAIR_SHARE * page.length and min(main.length, page.length) >= NEARLY_NOTHING:
        return main
    return page if page.length >= NOTE else _text_of(root)


def _text_of(root: Any | None, asides: bool = True) -> TextBuilder:
    out = TextBuilder()
    if root is not None:
        append_page(out, root, asides)
    return out


def tree(content: bytes, charset: str | None = None) -> tuple[Any, str]:
    """The element tree of a page and the name of its encoding; `charset` is what came with it (a mail's header)."""
    from lxml import etree, html

    declared = DECLARED.search(content[:4096])
    name = charset or (next(g for g in declared.groups() if g).decode("ascii") if declared else None)
    text, encoding = decode(content, name)
    text = DECLARATION.sub("", plain(text), count=1)  # it names an encoding that is no longer true
    parser = html.HTMLParser(huge_tree=True, remove_comments=True, remove_pis=True, encoding="utf-8")
    try:
        root = html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except etree.ParserError:  # nothing in it
        return html.Element("html"), encoding
    if any(TOO_DEEP in entry.message for entry in parser.error_log):  # and what lies below is gone
        flat = _Flattener()
        flat.feed(text)
        flat.close()
        return flat.root, encoding
    return root, encoding


class _Flattener(HTMLParser):
    """Makes a page that is nested too deeply for a tree into a body of paragraphs and headings."""

    def __init__(self) -> None:
        from lxml import html

        super().__init__()
        self.root = html.fromstring("<html><body><p></p></body></html>")
        self._body = self.root.find("body")
        self._words: list[str] = []
        self._hidden = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self._hidden and tag in ("script", "style", "template", "head"):
            self._hidden = tag
        if tag in BLOCKS or tag in LEVELS:
            self._flush("p")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = "" if tag == self._hidden else self._hidden
        if tag in BLOCKS or tag in LEVELS:
            self._flush(tag if tag in LEVELS else "p")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._words.append(data)

    def close(self) -> None:
        super().close()
        self._flush("p")

    def _flush(self, tag: str) -> None:
        from lxml import etree

        text = one_line("".join(self._words))
        self._words.clear()
        if text:
            etree.SubElement(self._body, tag).text = CONTROL.sub("", text)


def append_page(out: TextBuilder, root: Any, asides: bool = True) -> None:
    """Append the text of an element tree, block by block, with or without navigation, side bars and footers.

    Iterates: pages nest deeper than Python recurses.
    """
    from lxml import etree

    words: list[str] = []
    preformatted = 0
    main = root.tag == MAIN  # trafilatura's tree, where `head` is a heading and `code` a block
    before = ""

    def add(text: str, kind: str) -> None:
        """Rows and list items that follow their like stand on the next line; other blocks stand apart."""
        nonlocal before
        if text:
            out.block(text, "\n" if kind == before and kind in ("row", "item") else "\n\n")
            before = kind

    def flush(kind: str = "block") -> None:
        text = "".join(words)
        words.clear()
        add(text.strip("\n").rstrip() if preformatted else _tidy(text).translate(RESTORE), kind)

    walker = etree.iterwalk(root, events=("start", "end"))
    for event, element in walker:
        tag = _tag(element)
        level = (LEVELS.get(element.get("rend", ""), 2) if tag == "head" else None) if main else LEVELS.get(tag)
        verbatim = tag == "pre" or (main and tag == "code" and element.getparent().tag not in INLINE_PARENTS)
        kind = "item" if tag in ITEMS else "block"
        if event == "end":
            if verbatim or tag in BLOCKS:
                flush(kind)
            preformatted -= verbatim
            if element is not root:
                words.append(_text(element.tail, bool(preformatted)))
        elif level is not None:
            flush()
            out.heading(level, one_line("".join(_strings(element))))
            before = "heading"
            walker.skip_subtree()
        elif not tag or tag in SKIPPED or (not asides and _is_aside(element, tag)):
            walker.skip_subtree()
        elif tag in ("tr", "row"):
            flush()
            add(row([_cell(cell) for cell in element.iterchildren() if _tag(cell)]), "row")
            walker.skip_subtree()
        elif tag in ("br", "lb"):
            words.append("\n")
        else:
            if verbatim or tag in BLOCKS:
                flush()
            preformatted += verbatim
            words.append(_text(element.text, bool(preformatted)))
    flush()


def _tag(element: Any) -> str:
    """An element's local name; '' for comments, instructions and what is never shown."""
    return element.tag.rpartition("}")[2].lower() if isinstance(element.tag, str) else ""


def _text(text: str | None, preformatted: bool) -> str:
    if not text:
        return ""
    return text if preformatted else re.sub(r"\s+", " ", text)


def _tidy(text: str) -> str:
    return "\n".join(line for line in (" ".join(line.split()) for line in text.split("\n")) if line)


def _cell(cell: Any) -> str:
    """What a cell holds on one line; nested blocks are parted by a space."""
    return " ".join(_strings(cell))


def _strings(element: Any) -> list[str]:
    from lxml import etree

    found = []
    walker = etree.iterwalk(element, events=("start", "end"))
    for event, inner in walker:
        if event == "end":
            if inner is not element and inner.tail:
                found.append(inner.tail)
        elif inner is not element and ((tag := _tag(inner)) in SKIPPED | {""} or _is_permalink(inner, tag)):
            walker.skip_subtree()
        elif inner.text:
            found.append(inner.text)
    return found


def _is_aside(element: Any, tag: str) -> bool:
    if tag in ASIDE_TAGS or element.get("role") in ASIDE_ROLES or element.get("aria-hidden") == "true":
        return True
    if tag == "li" and len(element) == 1 and element[0].get("hreflang"):  # the page in other languages
        return True
    return _is_permalink(element, tag)


def _is_permalink(element: Any, tag: str) -> bool:
    return tag == "a" and len(element) == 0 and (element.text or "").strip() in PERMALINKS


def _marked_content(root: Any) -> Any | None:
    """The element that the page says is its main content; None where it names none or several."""
    found = root.xpath("//main[not(ancestor::main)] | //*[@role='main'][not(self::main) and not(ancestor::main)]")
    found = found or root.xpath("//article[not(ancestor::article)]")
    return found[0] if len(found) == 1 else None


def _main_content(root: Any) -> Any | None:
    from copy import deepcopy

    import trafilatura

    page = deepcopy(root)
    for block in page.iter("pre"):
        for element in block.iter("*"):
            element.text = element.text and element.text.translate(KEEP)
            if element is not block:
                element.tail = element.tail and element.tail.translate(KEEP)
    try:
        found = trafilatura.bare_extraction(page, include_comments=False, favor_recall=True)
    except RecursionError:
        return None
    body = getattr(found, "body", None)
    if body is None:
        return None
    body.tag = MAIN
    return body


def _meta(root: Any, name: str) -> str | None:
    return next((e.get("content") for e in root.iter("meta") if e.get("name", "").lower() == name), None)


def _title(root: Any, out: TextBuilder) -> str | None:
    for element in root.iter("title"):
        if text := one_line(element.text_content()):
            return text
    return out.headings[0].text if out.headings else None
