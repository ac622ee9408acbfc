"""Each format, parsed in this process."""

from __future__ import annotations

import io
import zipfile
from email.message import EmailMessage

import pytest

from stages.parsers import registry, sniff, worker
from stages.parsers.document import Document, Drop, Options, Refusal


def parse(content: bytes, name: str, **options: object) -> Document:
    def find(media_type: str) -> registry.Parser:
        return registry.load(registry.PARSERS[media_type])

    _, document = worker.parse(content, name, None, Options(**options), frozenset(registry.PARSERS), find)
    for heading in document.headings:
        assert document.text[heading.start : heading.end] == heading.text
    for page in document.pages:
        assert 0 <= page.start <= page.end <= len(document.text)
    return document


def refused(content: bytes, name: str, **options: object) -> str:
    with pytest.raises(Refusal) as caught:
        parse(content, name, **options)
    assert str(caught.value)
    return caught.value.reason


def zipped(**parts: str | bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


DOCX_PARTS = {
    "[Content_Types].xml": "<Types xmlns='http://schemas.openxmlformats.org/package/2006/content-types'/>",
    "word/document.xml": "<w:document xmlns:w='w'><w:body><w:p><w:r><w:t>Hello</w:t></w:r></w:p></w:body></w:document>",
}


def test_docx_headings_tables_and_insertions() -> None:
    import docx

    made = docx.Document()
    made.add_heading("Title of it", 0)
    made.add_heading("First", 1)
    made.add_paragraph("Some words.")
    table = made.add_table(2, 2)
    for i, cell in enumerate(c for r in table.rows for c in r.cells):
        cell.text = f"cell {i}\nmore"
    buffer = io.BytesIO()
    made.save(buffer)
    document = parse(buffer.getvalue(), "a.bin")
    assert document.title == "Title of it"
    assert [(h.level, h.text) for h in document.headings] == [(1, "Title of it"), (1, "First")]
    assert "cell 0 more | cell 1 more\ncell 2 more | cell 3 more" in document.text


def test_docx_leaves_deleted_text_out_and_takes_text_boxes_once() -> None:
    body = (
        "<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins><w:r><w:t>new</w:t></w:r></w:ins></w:p>"
        "<w:p><w:r><mc:AlternateContent xmlns:mc='mc'><mc:Choice><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p>"
        "</w:txbxContent></mc:Choice><mc:Fallback><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent>"
        "</mc:Fallback></mc:AlternateContent></w:r></w:p>"
    )
    document = f"<w:document xmlns:w='w'><w:body>{body}</w:body></w:document>"
    assert parse(zipped(**DOCX_PARTS | {"word/document.xml": document}), "a.docx").text == "new\n\nbox"


def test_pptx_pages_titles_tables() -> None:
    from pptx import Presentation
    from pptx.util import Inches

    made = Presentation()
    for title in ("One", "Two"):
        slide = made.slides.add_slide(made.slide_layouts[5])
        slide.shapes.title.text = title
        table = slide.shapes.add_table(1, 2, Inches(1), Inches(2), Inches(4), Inches(1)).table
        table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
    buffer = io.BytesIO()
    made.save(buffer)
    document = parse(buffer.getvalue(), "a.pptx")
    assert document.text == "One\n\na | b\n\nTwo\n\na | b"
    assert [document.text[p.start : p.end] for p in document.pages] == ["One\n\na | b", "Two\n\na | b"]


def test_xlsx_rows() -> None:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Prices"
    book.active.append(["name", "price"])
    book.active.append(["tea", 2.0])
    buffer = io.BytesIO()
    book.save(buffer)
    assert parse(buffer.getvalue(), "a.xlsx").text == "Prices\n\nname | price\ntea | 2"


def test_csv_with_semicolons_and_line_breaks_in_fields() -> None:
    assert parse(b'a;b\n"x\ny";2\n1;2\n', "a.csv").text == "a | b\nx y | 2\n1 | 2"


def test_markdown_front_matter_and_headings() -> None:
    document = parse(b"---\ntitle: T\ntags: [a]\n---\n\n# One\n\n```\n# no\n```\n\nTwo\n---\n", "a.md")
    assert document.text.startswith("# One")
    assert document.title == "T"
    assert document.metadata["tags"] == ["a"]
    assert [(h.level, h.text) for h in document.headings] == [(1, "One"), (2, "Two")]


def test_markdown_front_matter_cannot_expand() -> None:
    bomb = "---\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n---\ntext\n"
    assert parse(bomb.encode(), "a.md").text == "text\n"


def test_rst_headings() -> None:
    source = "=====\nTitle\n=====\n\nPart\n----\n\nwords\n\nOther\n-----\n"
    document = parse(source.encode(), "a.rst.txt")
    assert [(h.level, h.text) for h in document.headings] == [(1, "Title"), (2, "Part"), (2, "Other")]
    assert document.title == "Title"
    assert document.text == source


def test_html_whole_page_and_main_content() -> None:
    words = "This sentence belongs to the article and says something about ducks. " * 8
    page = (
        f"<html><head><title>Ducks</title></head><body><nav><a href='/'>Home</a><a href='/b'>Menu</a></nav>"
        f"<article><h1>Ducks</h1><p>{words}</p><p>{words}</p><table><tr><td>a<td>b</table></article></body></html>"
    ).encode()
    whole = parse(page, "a.html", html="whole")
    assert "Menu" in whole.text
    assert "a | b" in whole.text
    assert [(h.level, h.text) for h in whole.headings] == [(1, "Ducks")]
    main = parse(page, "a.html")
    assert "Menu" not in main.text
    assert "about ducks" in main.text
    assert main.title == "Ducks"


def test_a_short_page_is_taken_whole() -> None:
    assert parse(b"<p>short</p><ul><li>one<li>two</ul>", "a.html").text == "short\n\none\ntwo"


def test_epub_spine_order() -> None:
    content = zipped(
        **{
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": "<container><rootfiles><rootfile full-path='o/p.opf'/></rootfiles></container>",
            "o/p.opf": "<package xmlns:dc='http://purl.org/dc/elements/1.1/'><metadata><dc:title>Book</dc:title>"
            "</metadata><manifest><item id='1' href='a.xhtml'/><item id='2' href='b%20b.xhtml'/></manifest>"
            "<spine><itemref idref='2'/><itemref idref='1'/></spine></package>",
            "o/a.xhtml": "<html><body><h1>Last</h1></body></html>",
            "o/b b.xhtml": "<html><body><p>First</p></body></html>",
        }
    )
    document = parse(content, "a.epub")
    assert (document.text, document.title) == ("First\n\nLast", "Book")


def test_mail_with_attachments() -> None:
    inner = EmailMessage()
    inner["Subject"] = "Inner"
    inner.set_content("inside")
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.com", "b@example.com", "Grüße"
    message["Date"] = "Mon, 01 Jan 2024 00:00:00 +0000"
    message.set_content("plain body ü")
    message.add_alternative("<p>html body</p>", subtype="html")
    message.add_attachment(b"x", maintype="application", subtype="octet-stream", filename="a.bin")
    message.add_attachment(inner)
    document = parse(message.as_bytes(), "no-extension")
    assert document.title == "Grüße"
    assert document.text == "plain body ü\n\nInner\n\ninside"
    assert document.metadata["attachments"] == ["a.bin"]


def test_rtf_with_characters_beyond_the_bmp() -> None:
    assert parse(rb"{\rtf1\ansi\uc0 Hello \u-10240\u-9216 }", "a.txt").text == "Hello \U00010000"


def test_xml_text() -> None:
    assert parse(b"<?xml version='1.0'?><a><b>one</b><c>two</c></a>", "a.xml").text == "one\ntwo"


ENTITIES = "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><a>&e;</a>"


def test_entities_are_refused_wherever_they_are() -> None:
    assert refused(ENTITIES.encode(), "a.xml") == "xml_entities"
    assert refused(zipped(**DOCX_PARTS | {"word/document.xml": ENTITIES}), "a.docx") == "xml_entities"
    assert refused(zipped(**DOCX_PARTS | {"word/document.xml": ENTITIES.encode("utf-16")}), "a.docx") == "xml_entities"


def test_bombs_are_refused_before_they_expand() -> None:
    bomb = zipped(**DOCX_PARTS | {"word/media.bin": b"\0" * (64 << 20)})
    assert refused(bomb, "a.docx") == "bomb"
    assert refused(zipped(**DOCX_PARTS), "a.docx", max_expanded_bytes=100) == "bomb"


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (b"", "a.pdf", "damaged"),
        (b"", "a.txt", "empty"),
        (b" \n\xe2\x80\x8b", "a.txt", "empty"),
        (b"<!doctype html><p>not found", "a.pdf", "type_mismatch"),
        (b"just text", "a.docx", "type_mismatch"),
        (b"%PDF-1.7\nnothing else", "a.pdf", "no_pages"),
        (b"\xff\xd8\xff\xe0" + bytes(range(256)) * 20, "a.jpg", "unsupported_type"),
        (b"\x1f\x8b\x08\0" + b"x" * 99, "a.gz", "archive"),
        (zipped(a="text"), "a.docx", "archive"),
        (zipped(mimetype="application/vnd.oasis.opendocument.text"), "a.odt", "unsupported_type"),
        (zipped(**DOCX_PARTS)[:-60], "a.docx", "damaged"),
        (sniff.OLE + b"\0" * 600, "a.doc", "unsupported_type"),
        (sniff.OLE + b"\0" * 600 + sniff.ENCRYPTED_PACKAGE, "a.docx", "password_required"),
    ],
)
def test_what_is_no_document_is_refused(content: bytes, name: str, reason: str) -> None:
    assert refused(content, name) in (reason, "damaged" if reason == "no_pages" else reason)


def test_an_empty_text_is_dropped_not_failed() -> None:
    with pytest.raises(Drop):
        parse(b"", "a.txt")


def test_pdf_passwords() -> None:
    import pymupdf

    pdf = pymupdf.open()
    pdf.new_page().insert_text((72, 72), "secret words")
    content = pdf.tobytes(encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="open", owner_pw="own")
    assert refused(content, "a.pdf") == "password_required"
    assert refused(content, "a.pdf", passwords=("wrong",)) == "password_required"
    assert parse(content, "a.pdf", passwords=("wrong", "open")).text == "secret words"


def test_pdf_pages_and_outline() -> None:
    import pymupdf

    pdf = pymupdf.open()
    for word in ("One", "Two"):
        page = pdf.new_page()
        page.insert_text((72, 72), f"Chapter {word}", fontsize=20)
        page.insert_text((72, 110), f"text of {word}")
    pdf.set_toc([[1, "Chapter One", 1], [1, "Chapter Two", 2]])
    document = parse(pdf.tobytes(), "a.pdf")
    assert [h.text for h in document.headings] == ["Chapter One", "Chapter Two"]
    assert "text of Two" in document.text[document.pages[1].start : document.pages[1].end]


def test_html_takes_what_the_page_marks_as_its_main_content() -> None:
    links = "".join(f"<li><a href='{i}'>Chapter {i}</a></li>" for i in range(30))
    page = (
        "<body><nav>Menu</nav><main><h1>Contents<a class='headerlink' href='#c'>¶</a></h1>"
        f"<aside>See also the shop</aside><ul>{links}<li>Part<ul><li>Annex</li></ul></li></ul>"
        "<p>Call <code>run()</code> first.</p><pre>def f():\n    return 1</pre>"
        "<ul><li><a hreflang='de' href='de'>Deutsch</a></li></ul></main><footer>Imprint</footer></body>"
    )
    document = parse(page.encode(), "a.html")
    assert "Chapter 0\nChapter 1\n" in document.text
    assert "Annex" in document.text
    assert "Call run() first." in document.text
    assert "def f():\n    return 1" in document.text
    assert [h.text for h in document.headings] == ["Contents"]
    for word in ("Menu", "shop", "Imprint", "Deutsch"):
        assert word not in document.text


def test_html_keeps_the_lines_of_preformatted_text_in_a_page_without_marks() -> None:
    words = "This sentence belongs to the article and says something about ducks. " * 8
    code = "<dl><dt>f</dt><dd>x<pre>if x:\n    return 1</pre></dd></dl>"
    page = f"<body><h1>T</h1><p>{words}</p>{code}<p>{words}</p></body>"
    assert "if x:\n    return 1" in parse(page.encode(), "a.html").text


def test_many_comments_before_a_page() -> None:
    assert parse(b"<!-- a -->" * 50_000 + b"<p>text", "a.html").text == "text"


def test_mail_with_several_text_parts() -> None:
    content = (
        b"From: a@example.com\nTo: b@example.com\nSubject: s\nContent-Type: multipart/mixed; boundary=X\n\n"
        b"--X\nContent-Type: text/plain\n\none\n--X\nContent-Type: multipart/alternative; boundary=Y\n\n"
        b"--Y\nContent-Type: text/plain\n\ntwo\n--Y\nContent-Type: text/html\n\n<p>not this\n--Y--\n"
        b"--X\nContent-Type: text/html\n\n<p>three</p>\n"
        b"--X\nContent-Type: text/plain\nContent-Disposition: attachment; filename=notes.txt\n\nnotes\n--X--\n"
    )
    document = parse(content, "a.eml")
    assert document.text == "one\n\ntwo\n\nthree"
    assert document.metadata["attachments"] == ["notes.txt"]


def test_mail_with_endless_headers() -> None:
    addresses = ", ".join(f"a{i} <a{i}@example.com>" for i in range(60_000))
    content = f"From: a@example.com\nTo: {addresses}\nSubject: {'=?utf-8?q?a?= ' * 100_000}\n\nbody"
    assert parse(content.encode(), "a.eml").text == "body"


def test_rtf_properties() -> None:
    document = parse(rb"{\rtf1\ansi\ansicpg1251{\info{\title \'cf\'f0}{\author Me}}text}", "a.rtf")
    assert (document.text, document.title, document.metadata) == ("text", "Пр", {"author": "Me"})


@pytest.mark.parametrize(
    ("content", "name", "text"),
    [
        (b"sep=;\na;b\n1;2\n", "a.csv", "a | b\n1 | 2"),
        (b'a,b\n"x,3\ny,4\n', "a.csv", 'a | b\n"x | 3\ny | 4'),
        (b'a,b\n"x ""y""",2\n"z,3\n', "a.csv", 'a | b\n"x ""y""" | 2\n"z | 3'),
        (b'a\tb\n"x\t1\ny"\t2\n', "a.tsv", 'a | b\n"x | 1\ny" | 2'),
        ('name;wert\n"Ä; B";1,5\n'.encode("utf-16"), "A.CSV", "name | wert\nÄ; B | 1,5"),
    ],
)
def test_tables_of_text(content: bytes, name: str, text: str) -> None:
    assert parse(content, name).text == text


def test_markdown_front_matter_that_is_not_quite_yaml() -> None:
    document = parse(b"---\ntitle: One: two\nauthor: Me\n---\n\ntext\n", "a.md")
    assert (document.title, document.text, document.headings) == ("One: two", "text\n", [])


def test_rst_titles_with_short_underlines() -> None:
    assert [h.text for h in parse(b"A long title\n====\n\ntext\n", "a.rst").headings] == ["A long title"]


def test_pptx_groups_notes_and_charts() -> None:
    from pptx import Presentation
    from pptx.chart.data import CategoryChartData
    from pptx.enum.chart import XL_CHART_TYPE
    from pptx.util import Inches

    made = Presentation()
    slide = made.slides.add_slide(made.slide_layouts[6])
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(Inches(1), Inches(1), Inches(1), Inches(1)).text_frame.text = "in a group"
    data = CategoryChartData()
    data.categories = ["East", "West"]
    data.add_series("Sales", (1.5, 20_000_000))
    box = Inches(1), Inches(3), Inches(4), Inches(3)
    chart = slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, *box, data).chart
    chart.has_title = True
    chart.chart_title.text_frame.text = "By region"
    slide.notes_slide.notes_text_frame.text = "say this"
    buffer = io.BytesIO()
    made.save(buffer)
    text = parse(buffer.getvalue(), "A.PPTX").text
    assert text == "in a group\n\nBy region\n\n | Sales\nEast | 1.5\nWest | 20000000\n\nsay this"


def test_epub_titles_come_from_the_table_of_contents_where_a_chapter_has_none() -> None:
    content = zipped(
        **{
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": "<container><rootfiles><rootfile full-path='o/p.opf'/></rootfiles></container>",
            "o/p.opf": "<package><manifest><item id='n' href='toc.ncx' media-type='application/x-dtbncx+xml'/>"
            "<item id='c' href='nav.xhtml' properties='nav'/><item id='a' href='a.xhtml'/></manifest>"
            "<spine><itemref idref='c'/><itemref idref='a'/><itemref idref='a'/></spine></package>",
            "o/toc.ncx": "<ncx><navMap><navPoint><navLabel><text>Chapter A</text></navLabel>"
            "<content src='a.xhtml#x'/></navPoint></navMap></ncx>",
            "o/nav.xhtml": "<html><body><p>Contents</p></body></html>",
            "o/a.xhtml": "<html><body><p>Text</p></body></html>",
        }
    )
    document = parse(content, "a.epub")
    assert document.text == "Chapter A\n\nText"
    assert [h.text for h in document.headings] == ["Chapter A"]
