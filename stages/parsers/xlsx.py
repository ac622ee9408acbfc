"""XLSX: a page and a heading per sheet, a line per row, cells parted by ` | `."""

from __future__ import annotations

import io
import zipfile
from datetime import date, datetime, time
from typing import Any

from stages.parsers.container import core_properties, damaged, open_package
from stages.parsers.document import Document, Source, TextBuilder, described, row


def parse(content: bytes, source: Source) -> Document:
    """Values as they were last computed; formulas without a stored value are empty."""
    import openpyxl
    from openpyxl.utils.exceptions import InvalidFileException

    with open_package(content, source.options) as archive:
        properties = core_properties(archive)
    try:
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True, keep_links=False)
    except (InvalidFileException, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise damaged(error) from error
    out = TextBuilder()
    for number, sheet in enumerate(book.worksheets, 1):
        start = out.length + (2 if out.length else 0)
        sheet.reset_dimensions()  # the declared size may be wrong in either direction
        rows = (row([_value(value) for value in values]) for values in sheet.iter_rows(values_only=True))
        lines = [line for line in rows if line]
        if lines:
            out.heading(1, sheet.title)
            out.block("\n".join(lines))
        out.page(number, start)
    title = properties.pop("title", None)
    return out.document(title, described(sheets=[sheet.title for sheet in book.worksheets], **properties))


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
