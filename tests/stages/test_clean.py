"""Clean: what goes, what stays, and that pages and headings still point at the same words."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from stages.clean import Clean, clean_document
from stages.core.outcome import Result
from stages.core.schema import DOCUMENTS


def text(dirty: str, **options: Any) -> str:
    return clean_document(dirty, [], [], Clean(**options))[0]


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("schÃ¶n and cafÃ©", "schön and café"),
        ("voilÃ\xa0 le travail", "voilà le travail"),
        ("itâ€™s a â€œquoteâ€\x9d", "it’s a “quote”"),
        ("РџСЂРёРІРµС‚ РјРёСЂ", "Привет мир"),
        ("good “quotes”, Ünïcode, Größe, naïve", "good “quotes”, Ünïcode, Größe, naïve"),
        ("one bad line: Ã¼ber\nГород Москва — столица\n漢字", "one bad line: über\nГород Москва — столица\n漢字"),
    ],
)
def test_mojibake(dirty: str, clean: str) -> None:
    assert text(dirty) == clean


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("a\x00b\x07c\x7fd", "abcd"),
        ("col\x1b[31mred\x1b[0m", "colred"),
        ("a\r\nb\rc\u2028d\x0be\x0cf", "a\nb\nc\nd\ne\nf"),
        ("a\u2029b", "a\n\nb"),
        ("\ufeffzero\u200bwidth\u2060 w\u200dor\u200cds", "zerowidth words"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क्\u200dष", "क्\u200dष"),
        ("👨\u200d👩\u200d👧 ❤️\u200d🔥", "👨\u200d👩\u200d👧 ❤️\u200d🔥"),
        ("🏴\U000e0067\U000e0062\U000e007f ok", "🏴\U000e0067\U000e0062\U000e007f ok"),
        ("hid\U000e0068\U000e0069den", "hidden"),
        ("សួស្តី\u200bពិភពលោក", "សួស្តី\u200bពិភពលោក"),
        ("so\xadft hy\xadphens", "soft hyphens"),
        ("שלום\u200f!", "שלום\u200f!"),
    ],
)
def test_invisible_characters(dirty: str, clean: str) -> None:
    assert text(dirty) == clean


def test_a_next_line_character_is_a_line_break_and_may_be_a_mangled_ellipsis() -> None:
    assert text("a\x85b") == "a…b"
    assert text("a\x85b", mojibake=False) == "a\nb"


def test_bidi_marks_go_when_asked() -> None:
    assert text("\u202aשלום\u202c\u200f!", bidi_marks="remove") == "שלום!"


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("an exam-\nple", "an example"),
        ("an exam-  \n   ple here", "an example here"),
        ("an exam\u2010\nple", "an example"),
        ("an exam\xad\nple", "an example"),
        ("eine Daten-\nbank", "eine Datenbank"),
        ("une con-\nséquence", "une conséquence"),
        ("a well-\nknown fact", "a well-known fact"),
        ("state-of-\nthe-art", "state-of-the-art"),
        ("the run-\ntime; a run-time", "the run-time; a run-time"),
        ("a self-\nish person; selfish", "a selfish person; selfish"),
        ("pre-\nand post-war", "pre-\nand post-war"),
        ("Vor-\nund Nachteile", "Vor-\nund Nachteile"),
        ("- item -\n- next", "- item -\n- next"),
        ("1990-\n1995", "1990-\n1995"),
        ("US-\nArmee", "US-\nArmee"),
        ("last line-\n\nnew paragraph", "last line-\n\nnew paragraph"),
        ("x-\ny", "x-\ny"),
    ],
)
def test_hyphenation(dirty: str, clean: str) -> None:
    assert text(dirty) == clean


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("  a  b\t\tc\td \n", "a b c d"),
        ("a\xa0b\u2003c\u202f!", "a b c !"),
        ("a   \n\n\n \t\n\nb", "a\n\nb"),
        ("def f():\n    return  1\n", "def f():\n    return 1"),
        ("全角　空白", "全角　空白"),
    ],
)
def test_white_space(dirty: str, clean: str) -> None:
    assert text(dirty) == clean


def test_indentation_goes_when_asked() -> None:
    assert text("a\n    b\n\n\tc", indentation=False) == "a\nb\n\nc"


def test_unicode_forms() -> None:
    assert text("e\u0301 ﬁ ①") == "é ﬁ ①"
    assert text("e\u0301 ﬁ ①", unicode="NFKC") == "é fi 1"
    assert text("é", unicode="NFD") == "e\u0301"
    assert text("e\u0301", unicode="none") == "e\u0301"


def test_everything_can_be_turned_off() -> None:
    dirty = "schÃ¶n  e\u0301\u200b exam-\nple\n\n\n\nend"
    off = {"mojibake": False, "unicode": "none", "invisible": False, "hyphenation": False, "whitespace": False}
    assert text(dirty, **off) == dirty
    with pytest.raises(ValidationError):
        Clean(unicode="nfc")


def paged(*pages: str) -> tuple[str, list[dict[str, Any]]]:
    joined, spans = "", []
    for number, page in enumerate(pages, 1):
        joined += "\n\n" if joined else ""
        spans.append({"page": number, "start": len(joined), "end": len(joined) + len(page)})
        joined += page
    return joined, spans


def test_headers_and_footers_with_page_numbers_go_when_asked() -> None:
    bodies = [
        f"Unique body {word} of the page.\nIts second line on {word}." for word in ("ant", "bee", "cat", "dog", "eel")
    ]
    whole, pages = paged(*(f"The Journal, vol. 3\n{body}\nPage {n} of 5" for n, body in enumerate(bodies, 1)))
    assert clean_document(whole, pages, [], Clean())[0] == whole
    cleaned, spans, _ = clean_document(whole, pages, [], Clean(headers_footers=True))
    assert cleaned == "\n\n".join(bodies)
    assert [cleaned[s["start"] : s["end"]].strip() for s in spans] == bodies


def test_bare_page_numbers_go_and_figures_stay() -> None:
    whole, pages = paged(
        *(
            f"Body {word}.\n{figure}\n{n}"
            for n, (word, figure) in enumerate(zip("abcdef", (9, 4, 7, 7, 1, 3), strict=True), 41)
        )
    )
    cleaned = clean_document(whole, pages, [], Clean(headers_footers=True))[0]
    assert cleaned.split() == [
        w for word, figure in zip("abcdef", "947713", strict=True) for w in ("Body", f"{word}.", figure)
    ]


def test_a_heading_in_a_repeated_line_stays() -> None:
    whole, pages = paged(*(f"Introduction\nBody {word}." for word in ("one", "two", "three", "four")))
    headings = [{"level": 1, "text": "Introduction", "start": 0, "end": 12}]
    cleaned, _, kept = clean_document(whole, pages, headings, Clean(headers_footers=True))
    assert cleaned.count("Introduction") == 1
    assert kept == headings


def test_few_pages_have_no_headers() -> None:
    whole, pages = paged("Same\nbody one", "Same\nbody two")
    assert clean_document(whole, pages, [], Clean(headers_footers=True))[0] == whole


PIECES = (
    *(
        " ",
        "  ",
        "\n",
        "\n\n\n",
        "\t",
        "\r\n",
        "\x00",
        "\x0c",
        "\u200b",
        "\u200d",
        "\xad",
        "\xa0",
        "-\n",
        "\ufeff",
        "\u2029",
    ),
    *(
        "word",
        "exam",
        "ple",
        "schÃ¶n",
        "e\u0301",
        "ﬁ",
        "漢字",
        "می\u200cخ",
        "👨\u200d👩",
        "Größe",
        "x",
        ".",
        "Привет",
        "\x1b[1m",
    ),
)


@pytest.mark.parametrize("options", [{}, {"unicode": "NFKD"}, {"indentation": False}, {"bidi_marks": "remove"}])
def test_pages_and_headings_hold_the_words_that_they_held(options: dict[str, Any]) -> None:
    """Each page and heading has words of its own, between what is to be cleaned away."""
    draw = random.Random(1)
    for _ in range(150):
        dirty, spans = "", []
        for number in range(draw.randrange(1, 8)):
            dirty += "".join(draw.choices(PIECES, k=draw.randrange(6))) + "\n"
            start = len(dirty)
            middle = "".join(draw.choices(PIECES, k=draw.randrange(5)))
            dirty += f"<{number}{middle}{number}>"
            spans.append((start, len(dirty)))
            dirty += draw.choice(["\n", "\n\n", " \n", "\r\n"])
        pages = [{"page": i, "start": a, "end": b} for i, (a, b) in enumerate(spans, 1)]
        headings = [{"level": 1, "text": dirty[a:b], "start": a, "end": b} for a, b in spans]
        cleaned, new_pages, new_headings = clean_document(dirty, pages, headings, Clean(**options))
        assert len(new_headings) == len(spans)
        for i, (page, heading) in enumerate(zip(new_pages, new_headings, strict=True)):
            words = cleaned[heading["start"] : heading["end"]]
            assert words == heading["text"]
            assert words.startswith(f"<{i}")
            assert words.endswith(f"{i}>")
            assert (page["start"], page["end"]) == (heading["start"], heading["end"])
            assert page["page"] == i + 1
            assert words == text(dirty[slice(*spans[i])], **options)
        assert cleaned == cleaned.strip()
        assert unicodedata.is_normalized(options.get("unicode", "NFC"), cleaned)


def documents(*texts: str | None, **columns: list[Any]) -> pa.Table:
    n = len(texts)
    values: dict[str, list[Any]] = {name: [None] * n for name in DOCUMENTS.names}
    values |= {"doc_id": [f"d{i}" for i in range(n)], "uri": [f"file:///{i}" for i in range(n)], "text": list(texts)}
    return pa.table(values | columns, schema=DOCUMENTS)


def clean(table: pa.Table, **options: Any) -> Result:
    result = Clean(**options).open()(table)
    assert isinstance(result, Result)
    assert result.rows.schema == table.schema
    return result


def test_rows_keep_their_other_columns_and_empty_ones_are_dropped() -> None:
    table = documents("a  b", " \u200b\n", None, "c", title=["T", None, None, "U"])
    table = table.append_column("mine", pa.array([1, 2, 3, 4]))
    result = clean(table)
    assert result.rows.select(["doc_id", "text", "mine", "title"]).to_pylist() == [
        {"doc_id": "d0", "text": "a b", "mine": 1, "title": "T"},
        {"doc_id": "d3", "text": "c", "mine": 4, "title": "U"},
    ]
    assert result.outcomes is not None
    assert [(o["doc_id"], o["status"], o["reason"]) for o in result.outcomes.to_pylist()] == [
        ("d1", "dropped", "empty"),
        ("d2", "dropped", "empty"),
    ]


def test_title_and_metadata_are_cleaned() -> None:
    metadata = json.dumps(
        {"author": "JosÃ© \u200b Pérez", "tags": ["a\n b", 3, None], "n": {"x": "e\u0301"}, "bad": "\ud800"}
    )
    table = documents("text", "text", "text", title=["Ãœber\n uns", "", None], metadata=[metadata, "{}", "no json  é"])
    rows = clean(table).rows.to_pylist()
    assert [row["title"] for row in rows] == ["Über uns", "", None]
    assert json.loads(rows[0]["metadata"]) == {
        "author": "José Pérez",
        "tags": ["a b", 3, None],
        "n": {"x": "é"},
        "bad": "",
    }
    assert [row["metadata"] for row in rows[1:]] == ["{}", "no json  é"]


def test_pages_and_headings_that_are_null_stay_null() -> None:
    pages = [[{"page": 1, "start": 2, "end": 6}], None]
    rows = clean(documents("  text", "text", pages=pages, headings=[None, []])).rows
    assert rows["pages"].to_pylist() == [[{"page": 1, "start": 0, "end": 4}], None]
    assert rows["headings"].to_pylist() == [None, []]


def test_a_heading_of_noise_goes() -> None:
    headings = [[{"level": 1, "text": "\u200b", "start": 0, "end": 1}, {"level": 2, "text": "b", "start": 2, "end": 3}]]
    rows = clean(documents("\u200b\nb\n", headings=headings)).rows
    assert rows["headings"].to_pylist() == [[{"level": 2, "text": "b", "start": 0, "end": 1}]]


def test_text_alone_is_enough() -> None:
    result = Clean().open()(pa.table({"doc_id": ["d"], "text": ["a  b"]}))
    assert isinstance(result, Result)
    assert result.rows.to_pylist() == [{"doc_id": "d", "text": "a b"}]


def test_no_rows() -> None:
    assert clean(documents()).rows.num_rows == 0


@pytest.mark.parametrize(
    "unit", [" ", "\n \t", "\u200b", "\u200d", "é", "Ã©", "-\n", "exam-\n", "«»", "\xad", "\r", "\t ", "e\u0301"]
)
def test_a_megabyte_of_one_thing_takes_seconds(unit: str) -> None:
    text("a" + unit * (1_000_000 // len(unit)) + "b")


def test_real_sources_keep_their_words() -> None:
    folder = Path("/usr/share/doc/python3.11/html/_sources/library")
    if not folder.is_dir():
        pytest.skip("python3.11-doc is not installed")
    for path in sorted(folder.glob("*.rst.txt"))[:40]:
        source = path.read_text(encoding="utf-8")
        assert "".join(text(source, hyphenation=False).split()) == "".join(source.split())
