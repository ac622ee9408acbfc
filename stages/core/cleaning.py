"""Edits that take the noise out of a text. Each works on a TrackedText, so that offsets into it stay true."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from stages.core.offsets import Edit, TrackedText

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

NON_ASCII = re.compile(r"[^\x00-\x7f]")

# The characters that UTF-8's lead and continuation bytes become in the one-byte code pages that ftfy knows: mojibake
# has two of them side by side, or a lead byte before a space that was U+00A0. Ordinary European prose rarely has.
_CODE_PAGES = "\x80-\u0192\u02c6-\u02dd\u0384-\u03ce\u0401-\u0491\u2013-\u2122\u2202-\u25ca\uf8ff\ufb01\ufb02"
SUSPICIOUS = re.compile(f"[{_CODE_PAGES}][{_CODE_PAGES}]|[\x80-\x9f]|[ÂÃ] ")

ANSI_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
LINE_BREAK = re.compile("\r\n?|[\x0b\x0c\x85\u2028]")
PARAGRAPH_BREAK = re.compile("\u2029")
CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufff9-\ufffc\ufffe\uffff]+")

# Scripts written without spaces, where a zero-width space says where a word ends.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf"
# Scripts and emoji where a joiner or non-joiner changes what is read: Arabic to N'Ko, the Indic and South-East Asian
# scripts, Mongolian, their later blocks, and symbols with their variation selector.
_JOINED = (
    "\u0600-\u08ff\u0900-\u109f\u1780-\u18af\u2190-\u2bff\u3030\ua840-\uabff\ufb50-\ufdff\ufe0f\ufe70-\ufefc"
    "\U00010a00-\U00011fff\U0001e900-\U0001e95f\U0001f000-\U0001faff"
)
INVISIBLE = re.compile("[\u200b-\u200d\u2060-\u2064\u206a-\u206f\ufeff\U000e0000-\U000e007f]")
ZERO_WIDTH = re.compile(
    "[\u2060-\u2064\u206a-\u206f\ufeff]+"
    f"|(?<![{_UNSPACED}])\u200b+|\u200b+(?![{_UNSPACED}])"
    f"|(?<![{_JOINED}\u200c\u200d])[\u200c\u200d]+"
    # Tags spell a flag after a black flag; elsewhere they are text that nobody sees.
    "|(?<![\U0001f3f4\U000e0020-\U000e007f])[\U000e0000-\U000e007f]+"
)
BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+")
SOFT_HYPHEN = re.compile("\xad+")

FANCY_SPACE = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f]")
# Each begins with what is rare, which lets `re` skip ahead, and takes a run of blanks once.
INNER_SPACES = re.compile("[ \t\u3000](?<=\\S.)(?:(?<=\t)|[ \t\u3000])[ \t\u3000]*")
LEADING_SPACES = re.compile("\n[ \t\u3000]+")
BLANK_LINE_SPACES = re.compile("\n[ \t\u3000]+(?=\n)")
TRAILING_SPACE = re.compile("[ \u3000](?=\n)")
BLANK_LINES = re.compile(r"\n{3,}")

_LOWER = "a-zß-öø-ÿāăąćĉċčďđēĕėęěĝğġģĥħĩīĭįıĵķĺļľłńņňŋōŏőœŕŗřśŝşšţťŧũūŭůűųŵŷźżžșț"
_LETTER = f"{_LOWER}A-ZÀ-ÖØ-ÞĀ-ž"
BROKEN_WORD = re.compile(f"[-\u2010\xad][ \t]*\n[ \t]*(?=[{_LOWER}]{{2}})")
_BEFORE = re.compile(f"[{_LETTER}]+$")
_AFTER = re.compile(f"[{_LOWER}]+(-?)")
_PUNCTUATION = ".,;:!?…()[]{}<>«»\"'“”‘’„*_`"
# `pre- and post-`: a hyphen that stands for a word to come.
_CONJUNCTIONS = "and or und oder bzw sowie et ou bis to y o e och eller og en of"
CONJUNCTIONS = frozenset(_CONJUNCTIONS.split())
# First parts that keep their hyphen in a compound more often than not.
_FIRST_PARTS = (
    "cross ex far first full good half hard high ill large late left long low mid new old one open post real right "
    "second self short single small third three top twenty thirty forty fifty sixty seventy eighty ninety two well wide"
)
FIRST_PARTS = frozenset(_FIRST_PARTS.split())


def fix_mojibake(text: TrackedText) -> None:
    """UTF-8 that was decoded as a one-byte code page becomes what it was (ftfy, Robyn Speer)."""
    if text.text.isascii():
        return
    from ftfy import fix_encoding

    text.rewrite_lines(SUSPICIOUS, fix_encoding)


def remove_invisible(text: TrackedText, bidi: bool = False) -> None:
    """Line ends become `\\n`; control and zero-width characters go, but for those that change what is read."""
    text.sub(ANSI_ESCAPE, "")
    text.sub(LINE_BREAK, "\n")
    text.sub(CONTROL, "")
    if text.text.isascii():
        return
    text.sub(PARAGRAPH_BREAK, "\n\n")
    if INVISIBLE.search(text.text):
        text.sub(ZERO_WIDTH, "")
    if bidi:
        text.sub(BIDI, "")


def normalize(text: TrackedText, form: NormalForm) -> None:
    """A Unicode normal form (Unicode Standard Annex 15)."""
    if not unicodedata.is_normalized(form, text.text):
        text.rewrite_lines(NON_ASCII, partial(unicodedata.normalize, form))


def join_hyphenated(text: TrackedText) -> None:
    """Put words together that a line's end has cut (`exam-` / `ple`), in Latin script.

    The hyphen stays where the document writes the word with one elsewhere, or where it looks like a compound; the line
    break stays where the hyphen stands for a word to come (`pre-` / `and post-war`).
    """
    text.replace(list(_joins(text.text)))


def remove_soft_hyphens(text: TrackedText) -> None:
    """Places where a word may be broken: to be removed after `join_hyphenated`, which reads those at a line's end."""
    text.sub(SOFT_HYPHEN, "")


def _joins(text: str) -> Iterator[Edit]:
    words: set[str] | None = None
    for match in BROKEN_WORD.finditer(text):
        start, end = match.span()
        before, after = _BEFORE.search(text, max(0, start - 64), start), _AFTER.match(text, end)
        if before is None or after is None:
            continue
        if text[start] == "\xad":
            yield start, end, ""
            continue
        first, second = before.group(), after.group().rstrip("-")
        if second in CONJUNCTIONS or len(first) < 2:
            continue
        if words is None:
            words = {word.strip(_PUNCTUATION) for word in set(text.lower().split())}
        hyphenated = f"{first}-{second}".lower() in words
        joined = f"{first}{second}".lower() in words
        in_compound = bool(after.group(1)) or text[before.start() - 1 : before.start()] == "-"
        keep = hyphenated if hyphenated != joined else in_compound or first.lower() in FIRST_PARTS
        yield start, end, "-" if keep else ""


def collapse_whitespace(text: TrackedText, indentation: bool = True) -> None:
    """One space between words, none at a line's end, one blank line at most. `indentation`: leave lines' beginnings."""
    if not text.text.isascii():
        text.sub(FANCY_SPACE, " ")
    text.sub(INNER_SPACES, " ")
    text.sub(BLANK_LINE_SPACES, "\n")
    text.sub(TRAILING_SPACE, "")
    text.sub(BLANK_LINES, "\n\n")
    if not indentation:
        text.sub(LEADING_SPACES, "\n")


def clean_value(value: object, clean: Callable[[str], str]) -> object:
    """A JSON value with every string in it cleaned, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_value(item, clean) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean_value(item, clean) for key, item in value.items()}
    return value
