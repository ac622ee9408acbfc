"""PPTX: a page per slide, with its title as a heading, its shapes, tables and notes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from stages.parsers.container import core_properties, damaged, open_package
from stages.parsers.document import Document, Source, TextBuilder, described, one_line, row


def parse(content: bytes, source: Source) -> Document:
    from pptx import Presentation
    from pptx.exc import PythonPptxError

    with open_package(content, source.options) as archive:
        properties = core_properties(archive)
    try:
        slides = Presentation(io.BytesIO(content)).slides
    except (PythonPptxError, KeyError, ValueError) as error:
        raise damaged(error) from error
    out = TextBuilder()
    for number, slide in enumerate(slides, 1):
        start = out.length + (2 if out.length else 0)
        title = slide.shapes.title
        if title is not None:
            out.heading(1, one_line(title.text_frame.text))
        for shape in _in_reading_order(slide.shapes):
            if title is None or shape.shape_id != title.shape_id:
                for block in _blocks(shape):
                    out.block(block)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            out.block(_frame(slide.notes_slide.notes_text_frame))
        out.page(number, start)
    title_text = properties.pop("title", None)
    first = out.headings[0].text if out.headings else None
    return out.document(title_text or first, described(**properties))


def _in_reading_order(shapes: Iterable[Any]) -> list[Any]:
    """Placeholders in the order of the slide; then what was placed by hand from top to bottom, left to right."""
    return sorted(
        shapes, key=lambda s: (not s.is_placeholder, *((s.top or 0, s.left or 0) if not s.is_placeholder else (0, 0)))
    )


def _blocks(shape: Any) -> Iterator[str]:
    if hasattr(shape, "shapes"):  # a group
        for inner in _in_reading_order(shape.shapes):
            yield from _blocks(inner)
    elif getattr(shape, "has_table", False):
        yield "\n".join(line for r in shape.table.rows if (line := row([cell.text for cell in r.cells])))
    elif getattr(shape, "has_chart", False):
        try:
            yield from list(_chart(shape.chart))
        except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError):
            return  # a kind of chart that python-pptx does not know
    elif shape.has_text_frame:
        yield _frame(shape.text_frame)


def _chart(chart: Any) -> Iterator[str]:
    """A chart's title, and its data as a table: a column for each series."""
    if chart.has_title and chart.chart_title.has_text_frame:
        yield _frame(chart.chart_title.text_frame)
    for plot in chart.plots:
        series = list(plot.series)
        rows = [["", *(one.name or "" for one in series)]]
        columns = [list(one.values) for one in series]
        for i, category in enumerate(plot.categories):
            rows.append([str(category), *(_number(column[i]) if i < len(column) else "" for column in columns)])
        yield "\n".join(line for cells in rows if (line := row(cells)))


def _number(value: float | None) -> str:
    return "" if value is None else str(int(value) if value.is_integer() else value)


def _frame(frame: Any) -> str:
    lines = ("".join(run.text for run in p.runs) if not p.text else p.text for p in frame.paragraphs)
    return "\n".join(line for line in (line.replace("\v", "\n").strip() for line in lines) if line)
