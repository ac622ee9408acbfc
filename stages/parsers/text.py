"""Bytes to text: byte-order marks, UTF-16 without one, declared and detected encodings."""

from __future__ import annotations

import codecs
import re
from collections import Counter

SAMPLE = 1 << 16
BINARY_SHARE = 0.1
"""Share of control characters above which bytes are no text."""

BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

WIDER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
}
"""What is meant by the names that documents use: the superset that browsers decode them with (WHATWG Encoding)."""

CANDIDATES = (
    *(f"cp{number}" for number in (1252, 1250, 1251, 1253, 1254, 1255, 1256, 1257, 1258, 866, 874, 932, 949)),
    *(f"iso8859_{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
    *("koi8_r", "koi8_u", "mac_cyrillic", "gb18030", "big5", "big5hkscs", "euc_jp", "euc_kr", "shift_jis"),
)
"""The legacy encodings of the web (WHATWG Encoding): with rarer ones the detection errs more often."""

CONTROL = bytes(c for c in (*range(32), 127) if c not in b"\t\n\r\f\x1b\x08")


def decode(content: bytes, declared: str | None = None) -> tuple[str, str]:
    """The text of `content` and the name of its encoding. Never raises: what cannot be decoded becomes U+FFFD.

    A byte-order mark wins; then UTF-8 where the bytes are valid; then what the document declares, where the bytes bear
    it out; then detection (charset-normalizer).
    """
    for mark, encoding in BOMS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace"), encoding
    if unmarked := _utf16(content):
        return content.decode(unmarked, "replace"), unmarked
    if b"\x1b$" in content or b"\x1b(J" in content:
        try:
            return content.decode("iso2022_jp_2"), "iso-2022-jp"
        except UnicodeDecodeError:
            pass
    try:
        return content.decode(), "utf-8"
    except UnicodeDecodeError:
        pass
    if _mostly_utf8(content):
        return content.decode("utf-8", "replace"), "utf-8"
    encoding = _borne_out(content, declared) or _detect(content)
    return content.decode(encoding, "replace"), encoding


def decode_head(content: bytes) -> str | None:
    """The first characters of `content`, decoded well enough for telling formats apart; None for binary data."""
    sample = content[:SAMPLE]
    for mark, encoding in BOMS:
        if sample.startswith(mark):
            return sample[len(mark) :].decode(encoding, "ignore")
    if unmarked := _utf16(sample):
        return sample.decode(unmarked, "ignore")
    controls = len(sample) - len(sample.translate(None, CONTROL))
    if controls > BINARY_SHARE * len(sample) or (controls > 0.01 * len(sample) and not _mostly_utf8(sample)):
        return None
    return sample.decode("latin-1")  # keeps the ASCII characters of any encoding that is left


def plain(text: str) -> str:
    """`text` with line ends as \\n, and without NUL characters."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\0", "") if "\0" in text else text


def _utf16(content: bytes) -> str | None:
    """The byte order of UTF-16 without a mark: NULs (of ASCII characters) stand at odd or at even offsets alone."""
    sample = content[: SAMPLE & ~1]
    if sample.find(0) < 0 or len(sample) < 4:
        return None
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    high, encoding = (odd, "utf-16-le") if odd > even else (even, "utf-16-be")
    if high < 0.002 * len(sample) or min(even, odd) > 0.05 * high:
        return None
    if high < 0.25 * len(sample) and _mostly_utf8(sample) and not _one_block(sample[encoding == "utf-16-le" :: 2]):
        return None  # a few NULs in a text of bytes
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError as error:
        if error.end < len(sample) - 4:
            return None
        text = sample[: error.start].decode(encoding)
    controls = sum((c < " " and c not in "\t\n\r\f") or "\ue000" <= c <= "\uf8ff" for c in text[:4096])
    return encoding if controls <= 0.02 * len(text[:4096]) else None


def _one_block(high_bytes: bytes) -> bool:
    """Whether the high bytes of UTF-16 characters say that most are of one alphabet (or ASCII)."""
    return sum(n for _, n in Counter(high_bytes).most_common(3)) > 0.95 * len(high_bytes) > 8


def _mostly_utf8(content: bytes) -> bool:
    """Whether a few bytes of UTF-8 text are broken, rather than the encoding being another one."""
    sample = content[:SAMPLE]
    text = sample.decode("utf-8", "replace")
    broken = text.count("\N{REPLACEMENT CHARACTER}")
    valid = sum(len(run) for run in re.findall(r"[^\x00-\x7f\ufffd]+", text))
    return not broken or valid > 4 * broken


def _borne_out(content: bytes, declared: str | None) -> str | None:
    """The codec for what a document declares, if its bytes decode with it and the name can be no mere default."""
    if not declared:
        return None
    try:
        name = codecs.lookup(declared.strip().strip("\"'")).name
    except LookupError:
        return None
    name = WIDER.get(name, name)
    if name in ("utf-8", "cp1252") or name.startswith("utf"):
        return None
    try:
        text = content.decode(name)
    except UnicodeDecodeError:
        return None
    except LookupError:  # a codec that does not make text (base64, rot13)
        return None
    return name if not re.search(r"[\x80-\x9f\ue000-\uf8ff]", text) else None


def _detect(content: bytes) -> str:
    from charset_normalizer import from_bytes

    sample = content if len(content) <= SAMPLE else content[: content.rfind(b"\n", 0, SAMPLE) + 1 or SAMPLE]
    if sample.isascii():
        start = next(i for i, byte in enumerate(content) if byte > 127)
        sample = content[max(0, start - 256) : start + SAMPLE]
    best = from_bytes(sample, cp_isolation=list(CANDIDATES)).best()
    if best is None or _scattered(sample.decode(best.encoding, "replace")):
        return "cp1252"
    # Western text fits several code pages alike; the common one is meant unless the difference shows.
    encoding = best.encoding
    if encoding != "cp1252" and encoding.startswith(("cp125", "iso8859")):
        try:
            western = sample.decode("cp1252")
        except UnicodeDecodeError:
            return encoding
        if western == sample.decode(encoding, "replace"):
            return "cp1252"
    return encoding


def _scattered(text: str) -> bool:
    """Whether what is not ASCII stands mostly within ASCII words and is no Latin letter: a wrong guess."""
    found = re.findall(r"([a-zA-Z]?)([^\x00-\x7f]+)([a-zA-Z]?)", text[:4096])
    within = sum(bool(before or after) and run[0] > "\u024f" for before, run, after in found)
    return within > 0.5 * len(found)
