"""parse: bytes to text, each document inside a worker process that can be killed."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import shutil
import subprocess
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ByteSize, Field

from stages.core.errors import ConfigError
from stages.core.outcome import Result, Status, outcomes
from stages.core.schema import DOCUMENTS, HEADINGS, PAGES
from stages.core.stage import Stage, Worker

if TYPE_CHECKING:
    from stages.parsers.process import Answer, Spec

PARSED = ("media_type", "title", "text", "metadata", "pages", "headings")


class Parse(Stage):
    """Turn each row's `content` into text, title, metadata, pages and headings; `content` is gone afterwards.

    What a document is comes from its bytes first and its name second; rows that have a `media_type` are taken at their
    word, rows that have a `text` pass through. A document fails alone: `timeout`, `memory_limit`, `crashed`, `damaged`,
    `password_required`, `unsupported_type`, `missing_library`, `type_mismatch`, `archive`, `bomb`, `xml_entities`.
    What has no text is dropped: `no_text_layer` for PDF, `empty` for others.

    Text that was extracted and is likely wrong (an undecodable font) has `suspect_text: true` in its metadata.
    """

    requires: ClassVar[tuple[str, ...]] = ("doc_id", "uri", "content")
    adds: ClassVar[tuple[str, ...]] = PARSED

    timeout_s: float = Field(60.0, gt=0, description="seconds that a document may take; then only that document fails")
    memory_mb: int = Field(2048, ge=128, description="memory that a document may take, in MiB")
    html: Literal["main", "whole"] = Field("main", description="the main content of a web page, or the whole page")
    passwords: tuple[str, ...] = Field((), description="passwords to try on encrypted PDF files")
    ocr: Literal["off", "auto"] = Field("off", description="auto: Tesseract reads PDF pages that have no text layer")
    ocr_language: str = Field("eng", description="Tesseract's language codes, joined by +")
    on_suspect: Literal["keep", "drop"] = Field("keep", description="what becomes of text that is likely wrong")
    max_expanded: ByteSize = Field(ByteSize(1 << 30), description="bytes that a zip document may unpack to (1GiB)")
    parsers: dict[str, str] = Field(
        default_factory=dict,
        description="media type -> package.module:function, in place of or beside the parsers here",
    )

    def open(self) -> Worker:
        from stages.parsers.document import Options
        from stages.parsers.process import Spec

        options = Options(
            html=self.html,
            passwords=self.passwords,
            ocr=self.ocr,
            ocr_language=self.ocr_language,
            max_expanded_bytes=int(self.max_expanded),
        )
        spec = Spec(options, tuple(sorted(self.parsers.items())), self.timeout_s, self.memory_mb)
        return lambda rows: parse_rows(rows, spec, self.on_suspect == "drop")

    def output_columns(self, columns: frozenset[str]) -> frozenset[str]:
        return (columns | frozenset(self.adds)) - {"content"}

    def check(self) -> None:
        for media_type, path in self.parsers.items():
            module, _, function = path.partition(":")
            if not module or not function:
                raise ConfigError(f"{self.label}.parsers", f"{media_type}: {path!r} is not package.module:function")
            if not _is_there(module):
                raise ConfigError(f"{self.label}.parsers", f"{media_type}: there is no module {module}")
        if self.ocr == "off":
            return
        tesseract = shutil.which("tesseract")
        if tesseract is None:
            raise ConfigError(
                f"{self.label}.ocr", "needs the program tesseract, which is not installed; install it or say off"
            )
        listed = subprocess.run([tesseract, "--list-langs"], capture_output=True, text=True, timeout=30, check=False)
        missing = set(self.ocr_language.split("+")) - set(listed.stdout.split("\n")[1:])
        if missing:
            raise ConfigError(f"{self.label}.ocr_language", f"tesseract has no data for {', '.join(sorted(missing))}")

    def identity(self) -> dict[str, Any]:
        from stages.parsers.registry import versions

        return versions()

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        from stages import parsers

        return ("stages.parse", *(f"stages.parsers.{module.name}" for module in pkgutil.iter_modules(parsers.__path__)))


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def parse_rows(rows: pa.Table, spec: Spec, drop_suspect: bool = False) -> Result:
    """Parse the rows of a table that have no `text`. The other rows and columns stay as they are; `content` goes."""
    from stages.parsers.process import Request, parse_all

    rows = _with_parsed_columns(rows)
    todo = pc.indices_nonzero(rows["text"].is_null()).to_pylist()
    names, types, contents = rows["uri"], rows["media_type"], rows["content"]
    rows = rows.drop_columns("content")
    if not todo:
        return Result(rows)

    def requests() -> Iterator[Request]:
        for i in todo:
            content = contents[i].as_buffer()
            yield Request(names[i].as_py() or "", types[i].as_py(), memoryview(b"" if content is None else content))

    good: list[int] = []
    answers: list[Answer] = []
    lost: dict[Status, list[tuple[int, dict[str, Any]]]] = {"dropped": [], "failed": []}
    for i, answer in zip(todo, parse_all(requests(), spec), strict=True):
        meta = answer.meta
        if meta["status"] != "ok":
            lost[meta["status"]].append((i, meta))
        elif drop_suspect and (found := json.loads(meta["metadata"])).get("suspect_text"):
            lost["dropped"].append(
                (i, {"reason": "suspect_text", "message": f"the text is likely wrong: {found.get('suspect_because')}"})
            )
        else:
            good.append(i)
            answers.append(answer)
    out = _filled(rows.take(pa.array(good, pa.int64())), answers)
    if len(todo) < rows.num_rows:
        passing = pc.indices_nonzero(rows["text"].is_valid())
        order = pc.sort_indices(pa.chunked_array([pa.array(good, pa.uint64()), passing]))
        out = pa.concat_tables([out, rows.take(passing)]).take(order)
    tables = [_outcomes(rows, status, rest) for status, rest in lost.items() if rest]
    return Result(out, pa.concat_tables(tables) if tables else None)


def _with_parsed_columns(rows: pa.Table) -> pa.Table:
    for name in PARSED:
        if name not in rows.column_names:
            field = DOCUMENTS.field(name)
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows


def _filled(rows: pa.Table, answers: list[Answer]) -> pa.Table:
    """`rows` with the columns that parsing gives, one answer a row."""
    metas = [answer.meta for answer in answers]
    given: dict[str, list[Any]] = {
        "media_type": [meta["media_type"] for meta in metas],
        "title": [meta["title"] or had for meta, had in zip(metas, rows["title"].to_pylist(), strict=True)],
        "text": [answer.text for answer in answers],
        "metadata": [
            _joined(had, meta["metadata"]) for meta, had in zip(metas, rows["metadata"].to_pylist(), strict=True)
        ],
        "pages": _lists(PAGES, [meta["pages"] for meta in metas]),
        "headings": _lists(HEADINGS, [_with_texts(meta["headings"], text) for meta, text in answers]),
    }
    for name, values in given.items():
        at = rows.schema.get_field_index(name)
        field = rows.schema.field(at)
        array = values if isinstance(values, pa.Array) else pa.array(values, field.type)
        rows = rows.set_column(at, field, array.cast(field.type))
    return rows


def _with_texts(headings: list[list[Any]], text: bytes) -> list[list[Any]]:
    levels, starts, ends = headings
    if not starts:
        return [levels, [], starts, ends]
    characters = text.decode()
    return [levels, [characters[start:end] for start, end in zip(starts, ends, strict=True)], starts, ends]


def _lists(kind: pa.DataType, columns: list[list[list[Any]] | None]) -> pa.Array:
    """A column of lists of structs, from each row's fields as lists; null where a row has none.

    Joining flat lists takes a tenth of the time that Arrow takes over as many structs.
    """
    lengths = [len(fields[0]) if fields else 0 for fields in columns]
    offsets = pa.array([0, *accumulate(lengths)], pa.int32())
    fields = [kind.value_type.field(i) for i in range(kind.value_type.num_fields)]
    flat = [list(chain.from_iterable(row[i] for row in columns if row)) for i in range(len(fields))]
    values = pa.StructArray.from_arrays(
        [pa.array(values, field.type) for values, field in zip(flat, fields, strict=True)], fields=fields
    )
    return pa.ListArray.from_arrays(offsets, values, kind, mask=pa.array([not row for row in columns], pa.bool_()))


def _joined(had: str | None, found: str) -> str:
    return found if not had else json.dumps(json.loads(had) | json.loads(found), ensure_ascii=False, sort_keys=True)


def _outcomes(rows: pa.Table, status: Status, rest: list[tuple[int, dict[str, Any]]]) -> pa.Table:
    metas = [meta for _, meta in rest]
    return outcomes(
        rows.take(pa.array([i for i, _ in rest], pa.int64())),
        status,
        [meta["reason"] for meta in metas],
        [meta["message"] for meta in metas],
        [meta["error_type"] for meta in metas] if status == "failed" else None,
    )
