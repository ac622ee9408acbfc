"""CSV and TSV: a line per record, fields parted by ` | `."""

from __future__ import annotations

import csv
import io
import sys

from stages.parsers.document import Document, Source, row
from stages.parsers.text import decode, plain

SAMPLE = 1 << 16


def parse(content: bytes, source: Source) -> Document:
    text, encoding = decode(content)
    text = plain(text)
    csv.field_size_limit(sys.maxsize)
    if source.media_type == "text/tab-separated-values":
        records = csv.reader(io.StringIO(text), delimiter="\t")
    else:
        records = csv.reader(io.StringIO(text), _dialect(text))
    try:
        lines = [line for record in records if (line := row(record))]
    except csv.Error:  # no table after all
        return Document(text, metadata={"encoding": encoding})
    return Document("\n".join(lines), metadata={"encoding": encoding})


def _dialect(text: str) -> type[csv.Dialect]:
    sample = text[:SAMPLE]
    if len(text) > SAMPLE:
        sample = sample[: sample.rfind("\n") + 1] or sample
    try:
        return csv.Sniffer().sniff(sample[:8192], delimiters=",;\t|")
    except csv.Error:
        return csv.excel
