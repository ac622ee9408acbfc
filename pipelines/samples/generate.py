"""Makes those of the sample documents that are not plain UTF-8 text; the others are written by hand.

    python pipelines/samples/generate.py [DIRECTORY]

Their words are in texts.yaml. The same versions of the libraries give the same bytes.
"""

from __future__ import annotations

import io
import re
import sys
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import yaml

DOCUMENTS = Path(__file__).with_name("documents")
MADE = datetime(2024, 3, 1, 9, 0)
ZIP_DATE = (2024, 3, 1, 9, 0, 0)

TEXTS = yaml.safe_load(Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8"))

TIDES = [
    ("Date", "High water", "Height (m)", "Low water", "Height (m)"),
    ("1 March", "05:42", "4.8", "11:55", "0.9"),
    ("2 March", "06:20", "5.1", "12:34", "0.6"),
    ("3 March", "06:58", "5.3", "13:12", "0.4"),
    ("4 March", "07:36", "5.4", "13:51", "0.3"),
    ("5 March", "08:15", "5.2", "14:30", "0.5"),
]


def handbook_pdf() -> bytes:
    """A4, a chapter a page, with a header and a footer that repeat."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.pdfgen.canvas import Canvas
    from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate, Spacer

    def frame(canvas: Canvas, document: SimpleDocTemplate) -> None:
        canvas.setFont("Helvetica", 9)
        canvas.drawString(72, A4[1] - 40, "Vellmar harbour handbook")
        canvas.drawCentredString(A4[0] / 2, 30, f"Page {document.page} of {len(TEXTS['handbook'])}")

    style = getSampleStyleSheet()
    story = []
    for chapter, text in TEXTS["handbook"].items():
        story += [Paragraph(chapter, style["Heading1"]), Spacer(1, 12), Paragraph(text, style["BodyText"]), PageBreak()]
    out = io.BytesIO()
    template = SimpleDocTemplate(out, pagesize=A4, title="Vellmar harbour handbook", author="Maren Holt", invariant=1)
    template.build(story, onFirstPage=frame, onLaterPages=frame)
    return out.getvalue()


def bulletin_pdf() -> bytes:
    """One page of two columns, each to be read to its end."""
    from reportlab.lib.pagesizes import A5
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import BaseDocTemplate, Frame, FrameBreak, PageTemplate, Paragraph

    style = getSampleStyleSheet()
    story = []
    for number, (heading, text) in enumerate(TEXTS["bulletin"].items()):
        story += [FrameBreak()] if number == len(TEXTS["bulletin"]) // 2 else []
        story += [Paragraph(heading, style["Heading3"]), Paragraph(text, style["BodyText"])]
    out = io.BytesIO()
    template = BaseDocTemplate(out, pagesize=A5, title="Island bulletin, October", invariant=1)
    width = (A5[0] - 60) / 2
    columns = [Frame(left, 30, width, A5[1] - 60) for left in (25, 35 + width)]
    template.addPageTemplates(PageTemplate(frames=columns))
    template.build(story)
    return out.getvalue()


def tides_pdf() -> bytes:
    """A ruled table under a sentence."""
    from reportlab.lib import colors
    from reportlab.lib.pagesizes import A5
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table

    style = getSampleStyleSheet()
    table = Table(TIDES, style=[("GRID", (0, 0), (-1, -1), 0.5, colors.black), ("FONTSIZE", (0, 0), (-1, -1), 8)])
    heading = Paragraph("Tide table for Vellmar", style["Heading1"])
    note = Paragraph("Heights are metres above chart datum, times are local.", style["BodyText"])
    out = io.BytesIO()
    template = SimpleDocTemplate(out, pagesize=A5, title="Tide table", leftMargin=30, rightMargin=30, invariant=1)
    template.build([heading, note, Spacer(1, 12), table])
    return out.getvalue()


def canvas_pdf(lines: list[str], font: str = "Helvetica", **options: object) -> bytes:
    """A page with `lines` one below the other."""
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfgen.canvas import Canvas

    if font != "Helvetica":
        pdfmetrics.registerFont(UnicodeCIDFont(font))
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(700, 300), invariant=1, **options)
    canvas.setFont(font, 14)
    for number, line in enumerate(lines):
        canvas.drawString(40, 250 - 30 * number, line)
    canvas.save()
    return out.getvalue()


def tea_house_pdf() -> bytes:
    """Chinese, in a font that the file names and does not hold."""
    return canvas_pdf(TEXTS["tea_house_zh"].splitlines(), "STSong-Light")


def locked_pdf() -> bytes:
    """Opens with the password `halyard` only."""
    from reportlab.lib.pdfencrypt import StandardEncryption

    lock = StandardEncryption("halyard", ownerPassword="warden", strength=128)
    return canvas_pdf(["The wages of the harbour crew, for the warden's eyes."], encrypt=lock)


def damaged_pdf() -> bytes:
    """The beginning of the handbook: a download that broke off before the first page."""
    return handbook_pdf()[:400]


def scan_pdf() -> bytes:
    """A picture of a page, and no text."""
    from PIL import Image, ImageDraw, ImageFont
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    picture = Image.new("L", (1000, 500), 255)
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=34)
    lines = [
        "Lost and found",
        "One left boot, size 44",
        "A brass telescope, engraved H. V.",
        "A parrot that says 'ahoy'",
    ]
    for number, line in enumerate(lines):
        draw.text((60, 60 + 90 * number), line, fill=0, font=font)
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(500, 250), invariant=1)
    canvas.drawImage(ImageReader(picture.convert("1")), 0, 0, width=500, height=250)
    canvas.save()
    return out.getvalue()


def plan_docx() -> bytes:
    from docx import Document

    document = Document()
    document.core_properties.title = "Plan de travaux du port"
    document.core_properties.author = "Maren Holt"
    document.add_heading("Plan de travaux du port", 0)
    for heading, text in TEXTS["plan"].items():
        document.add_heading(heading, 1)
        document.add_paragraph(text)
    document.add_heading("Dépenses", 2)
    table = document.add_table(rows=0, cols=2)
    for cells in [("Travaux", "Couronnes"), ("Brise-lames", "48 000"), ("Dragage", "17 500"), ("Éclairage", "3 200")]:
        for cell, text in zip(table.add_row().cells, cells, strict=True):
            cell.text = text
    out = io.BytesIO()
    document.save(out)
    return fixed_zip(out.getvalue())


def observatory_pptx() -> bytes:
    from pptx import Presentation

    deck = Presentation()
    deck.core_properties.title = "Die Sternwarte von Skarne"
    for title, points in TEXTS["observatory"].items():
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text_frame.text = "\n".join(points)
    deck.slides[2].notes_slide.notes_text_frame.text = "Die Gruppe darf höchstens zwölf Personen haben."
    out = io.BytesIO()
    deck.save(out)
    return fixed_zip(out.getvalue())


def berths_xlsx() -> bytes:
    from openpyxl import Workbook

    book = Workbook()
    berths = book.active
    berths.title = "Berths"
    berths.append(["Berth", "Quay", "Length (m)", "Depth (m)", "Boat"])
    berths.append(["E1", "east", 40, 6.2, "visitors"])
    berths.append(["E2", "east", 24, 5.0, "visitors"])
    berths.append(["W1", "west", 18, 4.1, "Petrel"])
    berths.append(["W2", "west", 16, 3.8, "Kittiwake"])
    berths.append(["W3", "west", 12, 3.1, "Sea Campion"])
    stores = book.create_sheet("Stores")
    stores.append(["Item", "Stock", "Unit"])
    stores.append(["Coal", 38, "tonnes"])
    stores.append(["Stockholm tar", 11, "barrels"])
    stores.append(["Signal rockets", 60, "pieces"])
    out = io.BytesIO()
    book.save(out)
    return fixed_zip(out.getvalue())


def ferry_rtf() -> bytes:
    title, *paragraphs = TEXTS["ferry"]
    body = "".join(f"{text}\\par\n" for text in paragraphs).replace("'", "\\rquote ")
    head = r"{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0 Times New Roman;}}"
    return f"{head}{{\\info{{\\title {title}}}}}\n{{\\b {title}}}\\par\n{body}}}\n".encode("ascii")


def tales_epub() -> bytes:
    chapters = TEXTS["tales"]
    page = (
        '<?xml version="1.0" encoding="utf-8"?>\n<html xmlns="http://www.w3.org/1999/xhtml"><head>'
        "<title>{0}</title></head><body><h1>{0}</h1><p>{1}</p></body></html>"
    )
    names = [f"chapter{number}.xhtml" for number in range(1, len(chapters) + 1)]
    items = "".join(
        f'<item id="c{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(names)
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(names)))
    package = (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id"><metadata '
        'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">vellmar-tales</dc:identifier>'
        "<dc:title>Tales of Vellmar</dc:title><dc:creator>Saoirse Quill</dc:creator><dc:language>en</dc:language>"
        f"</metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = (
        '<?xml version="1.0"?>\n<container version="1.0" '
        'xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="package.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    files = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "package.opf": package}
    files |= {name: page.format(*chapter) for name, chapter in zip(names, chapters.items(), strict=True)}
    return make_zip({name: text.encode() for name, text in files.items()})


def letters_parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(TEXTS["letters"]), out)
    return out.getvalue()


def make_zip(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            stored = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(name, ZIP_DATE), content, stored)
    return out.getvalue()


def fixed_zip(content: bytes) -> bytes:
    """An Office file with every date in it set to MADE."""
    stamp = rf"\g<1>{MADE.isoformat()}Z\g<2>"
    files = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for name in archive.namelist():
            files[name] = archive.read(name)
    core = files["docProps/core.xml"].decode()
    dates = r"(<dcterms:(?:created|modified)[^>]*>)[^<]*(</)"
    return make_zip(files | {"docProps/core.xml": re.sub(dates, stamp, core).encode()})


MAKERS: dict[str, Callable[[], bytes]] = {
    "berths.xlsx": berths_xlsx,
    "bulletin.pdf": bulletin_pdf,
    "damaged.pdf": damaged_pdf,
    "decree.fr.txt": lambda: TEXTS["decree_fr"].encode("latin-1"),
    "empty.txt": bytes,
    "ferry.rtf": ferry_rtf,
    "handbook.pdf": handbook_pdf,
    "letters.parquet": letters_parquet,
    "locked.pdf": locked_pdf,
    "notice.ja.txt": lambda: TEXTS["notice_ja"].encode("shift_jis"),
    "notice.ko.txt": lambda: TEXTS["notice_ko"].encode("utf-16"),
    "observatory.de.pptx": observatory_pptx,
    "plan.fr.docx": plan_docx,
    "scan.pdf": scan_pdf,
    "tales.epub": tales_epub,
    "tea-house.zh.pdf": tea_house_pdf,
    "tides.pdf": tides_pdf,
}


def generate(directory: Path) -> None:
    """Write the documents in MAKERS to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, make in MAKERS.items():
        (directory / name).write_bytes(make())


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCUMENTS)
