"""LanceDB tables: opened, built in one version, changed in one version, kept compact, searched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    import lancedb

VECTOR = "embedding"
TEXT = "text"
SHOWN = ("chunk_id", "doc_id", "uri", "text", "heading_path", "page_first")
"""What a search gives of a row, where the table has it."""

SEGMENTATION = "icu/split"
"""Words by Unicode's own rules and its dictionaries, so that Chinese, Japanese and Thai are searched by words too."""

REFINE = 5
"""Times k: rows found by an index that are compared again by their full vectors."""

CANDIDATES = 50
"""Rows of each ranking that a hybrid search fuses, at least."""

SMALL_FRAGMENTS = 16
UNINDEXED_SHARE = 0.1
DELETED_SHARE = 0.1
NAMES_PER_FILTER = 1000

Mode = Literal["hybrid", "vector", "fulltext"]


class Indexing(NamedTuple):
    """Which indexes a table has. A table with fewer than `index_above` rows is scanned for vectors: exact, and fast."""

    full_text: bool = True
    language: str | None = None
    """The language to stem in, an English name. None: words as they are, which suits any mix of languages."""
    index_above: int = 50_000
    retain: timedelta = timedelta(days=7)
    """How long readers may go on with versions that were replaced."""


def storage_options_for(uri: str, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """`options`, and for s3 the endpoint and region of the usual AWS variables where `options` does not say.

    Keys and secrets are not copied: the store reads AWS_ACCESS_KEY_ID and its like from the environment itself.
    """
    given = dict(options or {})
    if not uri.startswith("s3://"):
        return given
    environ = os.environ
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    found = {"region": environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"}
    if endpoint:
        found["endpoint"] = endpoint
    merged = found | given
    if merged.get("endpoint", "").startswith("http://"):
        merged.setdefault("allow_http", "true")
    return merged


def exists(uri: str) -> bool:
    """False where `uri` is a local directory that is not there. (To connect would make it.)"""
    return "://" in _place(uri) or Path(_place(uri)).is_dir()


def connect(uri: str, options: Mapping[str, str] | None = None) -> lancedb.DBConnection:
    """Open the database at `uri`: a directory, which is made if need be, or `s3://bucket/prefix`."""
    # Its log warns of each table that is made that it was not there before.
    os.environ.setdefault("LANCEDB_LOG", "error")
    import lancedb

    return lancedb.connect(_place(uri), storage_options=storage_options_for(uri, options) or None)


def _place(uri: str) -> str:
    local = uri.removeprefix("file://")
    return local if "://" in local else str(Path(local).expanduser())


def table_names(db: lancedb.DBConnection) -> list[str]:
    """All tables of `db`, sorted."""
    names: list[str] = []
    token = None
    while True:
        page = db.list_tables(page_token=token, limit=1000)
        names += page.tables
        token = page.page_token
        if not token:
            return sorted(names)


def open_table(db: lancedb.DBConnection, name: str) -> lancedb.Table | None:
    """The table called `name`, or None: also where a build of it was killed, which leaves files but no version."""
    try:
        return db.open_table(name)
    except ValueError as error:
        if "was not found" not in str(error):
            raise
        return None


def metadata(table: lancedb.Table) -> dict[str, str]:
    """What the table records about itself."""
    return {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}


def build(db: lancedb.DBConnection, name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> lancedb.Table:
    """Make the table hold the rows of `tables` alone, streamed into one new version.

    `schema` with its metadata becomes the table's. Until the version is there, readers see the table that was.
    """
    batches = (batch for table in tables for batch in conform(table, schema).to_batches())
    return db.create_table(name, pa.RecordBatchReader.from_batches(schema, batches), mode="overwrite")


def distinct(table: lancedb.Table, column: str) -> set[str]:
    """The values of a string column. Memory grows with the values, not with the rows."""
    found: set[str] = set()
    for batch in table.search().select([column]).to_batches():
        found.update(batch.column(column).unique().to_pylist())
    return found


def replace_groups(
    table: lancedb.Table, key: str, group: str, new: Iterator[pa.Table], gone: Sequence[str], max_bytes: int
) -> None:
    """Upsert the rows of `new` by `key`, and delete the rows whose `group` is in `gone` and whose key did not come.

    Rows come as whole groups. Merges of up to `max_bytes` each, the last one together with the deletion: one version
    where the change is small. Killed at any point, the table holds whole groups, and the same call ends the work.
    """
    pending: list[pa.Table] = []
    ready: pa.Table | None = None
    for rows in new:
        if rows.num_rows == 0:
            continue
        pending.append(conform(rows, table.schema))
        if sum(t.nbytes for t in pending) >= max_bytes:
            if ready is not None:
                _merge(table, key, ready)
            ready, pending = pa.concat_tables(pending), []
    if pending:
        if ready is not None:
            _merge(table, key, ready)
        ready = pa.concat_tables(pending)
    filters = [_is_in(group, gone[i : i + NAMES_PER_FILTER]) for i in range(0, len(gone), NAMES_PER_FILTER)]
    if ready is not None:
        _merge(table, key, ready, filters.pop(0) if filters else None)
    for condition in filters:
        table.delete(condition)


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with the columns, the order and the types of `schema`."""
    return rows.select(schema.names).cast(schema)


def _merge(table: lancedb.Table, key: str, rows: pa.Table, delete: str | None = None) -> None:
    merge = table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
    if delete:
        merge = merge.when_not_matched_by_source_delete(delete)
    merge.execute(rows)


def _is_in(column: str, values: Sequence[str]) -> str:
    quoted = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{column} IN ({quoted})"


def maintain(table: lancedb.Table, indexing: Indexing, group: str | None = None) -> None:
    """Give the table the indexes that it should have, and compact it where it needs that. Else nothing is written."""
    rows = table.count_rows()
    names = table.schema.names
    indexes = {index.columns[0]: index for index in table.list_indices()}
    if indexing.full_text and TEXT in names and not _fits(indexes.get(TEXT), indexing):
        table.create_index(TEXT, config=_full_text(indexing), replace=True)
    if VECTOR in names and VECTOR not in indexes and rows >= indexing.index_above:
        from lancedb.index import IvfSq

        # As good as IVF_HNSW_SQ once the best are compared by their full vectors, and built 40 times as fast.
        table.create_index(VECTOR, config=IvfSq(distance_type="cosine"))
    if _untidy(table, rows, indexing.retain):
        table.optimize(cleanup_older_than=indexing.retain)


def _full_text(indexing: Indexing) -> Any:
    from lancedb.index import FTS

    # Lance's stop words are those of all its languages at once: they take "dog" (a Danish one) out of English text.
    stem = indexing.language is not None
    language = indexing.language or "English"
    return FTS(base_tokenizer=SEGMENTATION, language=language, stem=stem, remove_stop_words=False)


def _fits(index: Any, indexing: Indexing) -> bool:
    """Whether the full-text index that is there was made as `indexing` says."""
    if index is None:
        return False
    made = index.index_details or {}
    if made.get("base_tokenizer") != SEGMENTATION or made.get("stem") != (indexing.language is not None):
        return False
    return indexing.language in (None, made.get("language"))


def _untidy(table: lancedb.Table, rows: int, retain: timedelta) -> bool:
    """Whether there are many small files, versions that need not be kept, or many rows that an index does not know or
    that are only marked as deleted."""
    if table.stats()["fragment_stats"]["num_small_fragments"] > SMALL_FRAGMENTS:
        return True
    versions = table.list_versions()
    if versions[0]["timestamp"] < datetime.now() - retain and len(versions) > 1:
        return True
    if int(versions[-1]["metadata"].get("total_deletion_file_rows", 0)) > DELETED_SHARE * max(rows, 1):
        return True
    unindexed = [index.num_unindexed_rows or 0 for index in table.list_indices()]
    return max(unindexed, default=0) > UNINDEXED_SHARE * rows


def search(
    table: lancedb.Table, mode: Mode, k: int, question: str = "", vector: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """The k best rows, best first: `score` (more is better) and the columns of SHOWN that the table has.

    The score is the cosine similarity (vector), BM25 (fulltext), or reciprocal rank fusion of the two rankings
    (hybrid; Cormack, Clarke and Büttcher 2009).
    """
    shown = [name for name in SHOWN if name in table.schema.names]
    if mode == "vector":
        found = _nearest(table, vector).select([*shown, "_distance"]).limit(k).to_list()
        return [_hit(row, shown, 1 - row["_distance"]) for row in found]
    if mode == "fulltext":
        query = table.search(question, query_type="fts", fts_columns=TEXT)
        return [_hit(row, shown, row["_score"]) for row in query.select([*shown, "_score"]).limit(k).to_list()]
    from lancedb.rerankers import RRFReranker

    both = table.search(query_type="hybrid", vector_column_name=VECTOR, fts_columns=TEXT).vector(vector).text(question)
    ranked = (
        both.distance_type("cosine").refine_factor(REFINE).rerank(RRFReranker()).limit(max(4 * k, CANDIDATES)).to_list()
    )
    return [_hit(row, shown, row["_relevance_score"]) for row in ranked[:k]]


def _nearest(table: lancedb.Table, vector: Sequence[float] | None) -> Any:
    query = table.search(vector, vector_column_name=VECTOR, query_type="vector")
    return query.distance_type("cosine").refine_factor(REFINE)


def _hit(row: dict[str, Any], shown: Sequence[str], score: float) -> dict[str, Any]:
    return {"score": float(score)} | {name: row[name] for name in shown}
