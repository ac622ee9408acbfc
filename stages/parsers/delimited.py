"""CSV and TSV: a line per record, fields parted by ` | `."""

from __future__ import annotations

import csv
import io
import re
import sys
from typing import Any

from stages.parsers.document import Document, Source, row
from stages.parsers.text import decode, plain

SAMPLE = 1 << 16
SEPARATOR = re.compile(r"sep=(.)\n", re.IGNORECASE)
"""The first line by which a file tells Excel its delimiter."""


def parse(content: bytes, source: Source) -> Document:
    text, encoding = decode(content)
    text = plain(text)
    csv.field_size_limit(sys.maxsize)
    named = SEPARATOR.match(text)
    if named:
        text = text[named.end() :]
    options: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if text.count('"') % 2 else {}  # a quote that never ends
    if source.media_type == "text/tab-separated-values":
        options["delimiter"] = "\t"
    elif named:
        options["delimiter"] = named[1]
    else:
        options["dialect"] = _dialect(text)
    try:
        records = list(csv.reader(io.StringIO(text), **options))
        if any("\t" in cell and "\n" in cell for record in records for cell in record):
            # A quote that stands for itself has swallowed the rows up to the next one.
            records = list(csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))
    except csv.Error:  # no table after all
        return Document(text, metadata={"encoding": encoding})
    return Document("\n".join(line for record in records if (line := row(record))), metadata={"encoding": encoding})


def _dialect(text: str) -> type[csv.Dialect]:
    sample = text[:SAMPLE]
    if len(text) > SAMPLE:
        sample = sample[: sample.rfind("\n") + 1] or sample
    try:
        return csv.Sniffer().sniff(sample[:8192], delimiters=",;\t|")
    except csv.Error:
        return csv.excel
