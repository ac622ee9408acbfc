"""Filter: which rows go, and what is said of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import ValidationError

from stages.core.measures import alpha_share, repeated_lines, words
from stages.core.outcome import Result
from stages.filter import Filter


def rows(*texts: str | None) -> pa.Table:
    return pa.table(
        {
            "doc_id": [f"d{i}" for i in range(len(texts))],
            "uri": [f"file:///{i}" for i in range(len(texts))],
            "text": pa.array(texts, pa.string()),
            "mine": list(range(len(texts))),
        }
    )


def run(stage: Filter, table: pa.Table) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """The ids that stay, and what is said of the others."""
    result = stage.open()(table)
    assert isinstance(result, Result)
    assert result.outcomes is not None
    assert result.rows.schema == table.schema
    assert result.rows.num_rows + result.outcomes.num_rows == table.num_rows
    assert set(result.outcomes["status"].to_pylist()) <= {"dropped"}
    lost = {o["doc_id"]: (o["reason"], o["message"]) for o in result.outcomes.to_pylist()}
    return result.rows["doc_id"].to_pylist(), lost


@pytest.mark.parametrize(
    ("rule", "kept", "gone", "reason", "said"),
    [
        ({"min_chars": 5}, "12345", "1234", "too_short", ("4 characters", "min_chars=5")),
        ({"min_chars": 5}, "  12345\n", "   1234   ", "too_short", ("4 characters", "min_chars=5")),
        ({"max_chars": 4}, "1234", "12345", "too_long", ("5 characters", "max_chars=4")),
        ({"min_words": 3}, "one two three", "one two", "too_short", ("2 words", "min_words=3")),
        ({"max_words": 2}, "one two", "one two three", "too_long", ("3 words", "max_words=2")),
        ({"min_alpha_share": 0.5}, "abc 123", "abc 1234", "low_alpha", ("0.429", "min_alpha_share=0.5")),
        (
            {"max_repeated_lines_share": 0.3},
            "a\nb\n\n\nc\na",
            "a\nb\n a \nb",
            "repeated_lines",
            ("0.500", "max_repeated_lines_share=0.3"),
        ),
    ],
)
def test_each_rule_keeps_the_limit_and_names_itself(
    rule: dict[str, float], kept: str, gone: str, reason: str, said: tuple[str, str]
) -> None:
    ids, lost = run(Filter(**rule), rows(kept, gone))
    assert ids == ["d0"]
    assert lost["d1"][0] == reason
    assert all(part in lost["d1"][1] for part in said)


def test_the_first_rule_that_is_broken_is_the_reason_and_order_is_kept() -> None:
    stage = Filter(min_chars=3, min_words=2, min_alpha_share=0.5)
    ids, lost = run(stage, rows("two words", "x", "1", "word", "12 34 56", "three more words"))
    assert ids == ["d0", "d5"]
    assert {doc: reason for doc, (reason, _) in lost.items()} == {
        "d1": "too_short",
        "d2": "too_short",
        "d3": "too_short",
        "d4": "low_alpha",
    }
    assert "min_chars" in lost["d1"][1]
    assert "min_words" in lost["d3"][1]


def test_by_default_only_blank_and_missing_text_goes() -> None:
    ids, lost = run(Filter(), rows("a", "", " \n\t", None))
    assert ids == ["d0"]
    assert {reason for reason, _ in lost.values()} == {"too_short"}


def test_words_are_counted_in_scripts_without_spaces() -> None:
    texts = [
        "don't stop well-known 3 things",
        "今天天气很好",
        "これはペンです",
        "ภาษาไทยง่ายมากครับ",
        "नमस्ते दुनिया",
        "안녕 세계",
        "",
    ]
    english, chinese, japanese, thai, hindi, korean, nothing = words(pa.array(texts))
    assert (english, hindi, korean, nothing) == (5, 2, 2, 0)
    assert chinese == 3
    assert 2 <= japanese <= 4
    assert 3 <= thai <= 5


def test_letters_of_every_script_are_letters() -> None:
    shares = alpha_share(pa.array(["Ünïcödé", "日本語", "हिन्दी", "العربية", "1234", "   "]))
    assert shares.tolist() == [1, 1, 1, 1, 0, 0]


def test_repeated_lines_do_not_mix_texts() -> None:
    assert repeated_lines(pa.array(["a\nb", "a\nb", "\n\n", "x\nx\nx\nx"])).tolist() == [0, 0, 0, 0.75]


def test_chunks_are_judged_like_documents_and_keep_their_id() -> None:
    table = rows("long enough", "x").append_column("chunk_id", pa.array(["c0", "c1"]))
    result = Filter(min_chars=5).open()(table)
    assert isinstance(result, Result)
    assert result.rows["chunk_id"].to_pylist() == ["c0"]
    assert result.outcomes is not None
    assert result.outcomes["chunk_id"].to_pylist() == ["c1"]


def test_no_rows() -> None:
    everything = Filter(
        min_chars=1, max_chars=9, min_words=1, max_words=9, min_alpha_share=0.1, max_repeated_lines_share=0.9
    )
    assert run(everything, rows()) == ([], {})


def test_another_column() -> None:
    table = rows("x", "y").append_column("title", pa.array(["a title", None]))
    ids, _ = run(Filter(column="title", min_chars=3), table)
    assert ids == ["d0"]
    assert Filter(column="title").input_columns() == {"title"}


@pytest.mark.parametrize(
    "options", [{"min_chars": -1}, {"min_alpha_share": 1.5}, {"min_chars": 5, "max_chars": 4}, {"min_char": 1}]
)
def test_rules_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Filter(**options)
