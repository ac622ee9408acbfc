"""Reading order, on pages whose lines are drawn in an order that is known to be wrong (or right)."""

from __future__ import annotations

import random
from itertools import chain

import pymupdf
import pytest

from stages.parsers import pdf
from stages.parsers.document import Options, Source

Item = tuple[float, float, str]
WORDS = ("the", "harbour", "master", "keeps", "a", "record", "of", "every", "vessel", "that", "enters", "or", "leaves")


def read(items: list[Item], rotation: int = 0, rules: tuple[float, ...] = ()) -> list[str]:
    """The lines of a page on which `items` (x, y of the baseline, text) are drawn one after the other."""
    document = pymupdf.open()
    page = document.new_page(width=595, height=842)
    for x, y, text in items:
        page.insert_text((x, y), text, fontsize=10)
    for y in rules:
        page.draw_line((50, y), (550, y))
    page.set_rotation(rotation)
    source = Source("a.pdf", "application/pdf", Options())
    return [line for line in pdf.parse(document.tobytes(), source).text.split("\n") if line]


def column(x: float, seed: int, rows: int = 20, width: int = 48, top: float = 100) -> list[Item]:
    """Lines of prose that fill a column of `width` characters."""
    chance = random.Random(seed)
    items = []
    for i in range(rows):
        line = f"{chr(97 + seed)}{i:02}"
        while len(line) < width - 4:
            line += " " + chance.choice(WORDS)
        items.append((x, top + 13 * i, line[:width].rstrip()))
    return items


def in_turns(*columns: list[Item]) -> list[Item]:
    return list(chain.from_iterable(zip(*columns, strict=True)))


def shuffled(items: list[Item]) -> list[Item]:
    return random.Random(1).sample(items, len(items))


def texts(*items: Item) -> list[str]:
    return [text for _, _, text in items]


HEADER = (50, 40, "Handbook of harbours")
TITLE = (50, 70, "A title that stands over both of the columns of this page, wide as it is in every way")
SHORT = (250, 70, "Both columns")
FOOTER = (50, 800, "Page 1 of 3")
WIDE = column(50, 3, width=95)
LEFT, RIGHT = column(50, 0), column(310, 1)
ROWS = [[(60 + 110 * c, 100 + 16 * r, f"r{r} {c * r}.5" if c else f"name {r}") for c in range(4)] for r in range(8)]
TABLE = [" | ".join(texts(*row)) for row in ROWS]
BY_ROW = list(chain.from_iterable(ROWS))
BY_COLUMN = list(chain.from_iterable(zip(*ROWS, strict=True)))


@pytest.mark.parametrize(
    "drawn",
    [
        [HEADER, *WIDE, FOOTER],
        [FOOTER, HEADER, *WIDE],
        [*WIDE, FOOTER, HEADER],
        [*WIDE[10:], FOOTER, *WIDE[:10], HEADER],
        shuffled([HEADER, *WIDE, FOOTER]),
    ],
)
def test_a_single_column_is_read_from_top_to_bottom(drawn: list[Item]) -> None:
    assert read(drawn) == texts(HEADER, *WIDE, FOOTER)


@pytest.mark.parametrize("title", [TITLE, SHORT])
@pytest.mark.parametrize(
    "drawn",
    [
        [*LEFT, *RIGHT, FOOTER],
        [FOOTER, *LEFT, *RIGHT],
        [*in_turns(LEFT, RIGHT), FOOTER],
        [FOOTER, *in_turns(LEFT, RIGHT)],
        [*LEFT[:5], *RIGHT[:4], *LEFT[5:9], *RIGHT[4:], *LEFT[9:], FOOTER],
        shuffled([*LEFT, *RIGHT, FOOTER]),
    ],
)
def test_two_columns_are_read_one_after_the_other(drawn: list[Item], title: Item) -> None:
    wanted = texts(title, *LEFT, *RIGHT, FOOTER)
    assert read([title, *drawn]) == wanted
    assert read([*drawn, title]) == wanted


def test_three_columns() -> None:
    columns = [column(40 + 175 * i, 5 + i, width=30) for i in range(3)]
    assert read([TITLE, *in_turns(*columns)]) == texts(TITLE, *chain.from_iterable(columns))


@pytest.mark.parametrize("turned", [False, True])
def test_a_wide_heading_parts_the_columns_above_it_from_those_below(turned: bool) -> None:
    heading = (50, 430, "The second part of the page begins with a heading that runs across both columns")
    lower = column(50, 8, 12, top=450), column(310, 9, 12, top=450)
    upper = LEFT, RIGHT
    if turned:
        drawn = [TITLE, *in_turns(*upper), heading, *in_turns(*lower)]
    else:
        drawn = [*LEFT, *RIGHT, *lower[0], *lower[1], TITLE, heading]
    assert read(drawn) == texts(TITLE, *LEFT, *RIGHT, heading, *lower[0], *lower[1])


@pytest.mark.parametrize("drawn", [BY_ROW, BY_COLUMN, shuffled(BY_ROW)])
def test_tables_are_read_row_by_row(drawn: list[Item]) -> None:
    before, after = column(50, 3, 4, 95, top=40), column(50, 4, 4, 95, top=300)
    assert read([*before, *drawn, *after]) == [*texts(*before), *TABLE, *texts(*after)]
    assert read([FOOTER, *before, *drawn, *after]) == [*texts(*before), *TABLE, *texts(*after), FOOTER[2]]


def test_cells_that_are_sentences_are_no_columns_of_prose() -> None:
    chance = random.Random(5)
    sentences = [[" ".join(chance.choices(WORDS, k=8))[:40].strip().capitalize() for _ in range(2)] for _ in range(14)]
    drawn = [(50.0 + 250 * c, 100.0 + 16 * r, text) for r, row in enumerate(sentences) for c, text in enumerate(row)]
    assert read(drawn) == [" | ".join(row) for row in sentences]


def test_columns_of_chinese() -> None:
    lines = "你和你的恋人一起去快餐店你们排队等候收银员为前面的人点餐"
    document = pymupdf.open()
    page = document.new_page()
    for i in range(12):
        for column, x in (("左", 50), ("右", 320)):
            page.insert_text((x, 100 + 14 * i), f"{column}{lines[i : i + 16]}", fontsize=10, fontname="china-s")
    text = pdf.parse(document.tobytes(), Source("a.pdf", "application/pdf", Options())).text
    assert [line[0] for line in text.split("\n") if line] == ["左"] * 12 + ["右"] * 12


def test_lists_side_by_side_are_a_table_where_rules_part_the_rows() -> None:
    names = ["anchor", "berth", "buoy", "crane", "dock"]
    lists = [[(60 + 150 * c, 100 + 16 * r, f"{name} {c}") for r, name in enumerate(names)] for c in range(3)]
    drawn = list(chain.from_iterable(lists))
    assert read(drawn) == texts(*drawn)
    rules = tuple(104 + 16 * r for r in range(5))
    assert read(drawn, rules=rules)[:2] == ["anchor 0 | anchor 1 | anchor 2", "berth 0 | berth 1 | berth 2"]


def test_rows_that_are_out_of_place_stay_whole() -> None:
    assert read([FOOTER, *WIDE[:5], (50, 500, "Total"), (300, 500, "12")])[-2:] == [
        "Total | 12",
        "Page 1 of 3",
    ]


def test_side_notes_stay_where_they_were_drawn() -> None:
    body = column(50, 11, width=78)
    notes = [(480.0, 150.0, "A side note"), (480.0, 163.0, "goes on here")]
    assert read([*body, *notes]) == texts(*body, *notes)
    assert read([*notes, *body]) == texts(*notes, *body)


def test_footnotes_come_last() -> None:
    notes = [(50.0, 700.0, "1 A footnote about something small."), (50.0, 712.0, "2 Another footnote.")]
    assert read([*WIDE[:10], *notes, *WIDE[10:], FOOTER]) == texts(*WIDE, *notes, FOOTER)


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_turned_pages_are_read_as_if_they_were_level(rotation: int) -> None:
    assert read([FOOTER, TITLE, *in_turns(LEFT, RIGHT)], rotation) == texts(TITLE, *LEFT, *RIGHT, FOOTER)


def test_a_label_along_the_margin_does_not_part_the_page() -> None:
    document = pymupdf.open()
    page = document.new_page()
    for i, (x, y, text) in enumerate([FOOTER, *WIDE]):
        page.insert_text((x, y), text, fontsize=10)
        if i == 10:
            page.insert_text((20, 600), "stamped at the margin", fontsize=10, rotate=90)
    text = pdf.parse(document.tobytes(), Source("a.pdf", "application/pdf", Options())).text
    lines = [line for line in text.split("\n") if line and "stamped" not in line]
    assert lines == texts(*WIDE, FOOTER)
