"""Characters that come out of a PDF wrong: mended where the text says how, named as doubtful where it does not."""

from __future__ import annotations

import re
import statistics
import unicodedata
from itertools import pairwise

from stages.parsers import pdf_bidi
from stages.parsers.pdf_bidi import HEBREW, RIGHT_TO_LEFT, Character

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

CMAPS = (
    (re.compile(r"RKSJ"), "cp932"),
    (re.compile(r"GBK|GB-|GBpc|GBT"), "gb18030"),
    (re.compile(r"B5|ETen|HKscs", re.IGNORECASE), "big5hkscs"),
    (re.compile(r"KSC"), "cp949"),
    (re.compile(r"^(Ext-|Add-)?(EUC-)?[HV]$|^EUC-"), "euc_jp"),
)
"""Predefined CMaps (ISO 32000, table 116) whose codes are the bytes of a legacy encoding."""

STANDARD_ENCODING = {
    "¡": 0xA1, "¢": 0xA2, "£": 0xA3, "⁄": 0xA4, "¥": 0xA5, "ƒ": 0xA6, "§": 0xA7, "¤": 0xA8, "'": 0xA9, "“": 0xAA,
    "«": 0xAB, "‹": 0xAC, "›": 0xAD, "ﬁ": 0xAE, "ﬂ": 0xAF, "–": 0xB1, "†": 0xB2, "‡": 0xB3, "·": 0xB4, "¶": 0xB6,
    "•": 0xB7, "‚": 0xB8, "„": 0xB9, "”": 0xBA, "»": 0xBB, "…": 0xBC, "‰": 0xBD, "¿": 0xBF, "`": 0xC1, "´": 0xC2,
    "ˆ": 0xC3, "˜": 0xC4, "¯": 0xC5, "˘": 0xC6, "˙": 0xC7, "¨": 0xC8, "˚": 0xCA, "¸": 0xCB, "˝": 0xCD, "˛": 0xCE,
    "ˇ": 0xCF, "—": 0xD0, "Æ": 0xE1, "ª": 0xE3, "Ł": 0xE8, "Ø": 0xE9, "Œ": 0xEA, "º": 0xEB, "æ": 0xF1, "ı": 0xF5,
    "ł": 0xF8, "ø": 0xF9, "œ": 0xFA, "ß": 0xFB,
}  # fmt: skip
"""The upper half of Adobe's StandardEncoding (ISO 32000, annex D.2), through which unknown codes have gone."""

DIGITS = re.compile(
    "|".join(f"{d}(?:[.,/:\u066b\u066c]?{d})+" for d in ("[0-9]", "[\u0660-\u0669]", "[\u06f0-\u06f9]"))
)
BROKEN = re.compile(r"(?<!\S)\w (?:\S+ ){0,2}\w (?:\S+ ){0,2}\w(?!\S)")
"""Single letters, close to each other."""
SPREAD = re.compile(r"(?:(?<!\S)\w (?=\w(?: |$))){5,}\w(?!\S)", re.MULTILINE)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
ACCENTED = re.compile(r"[\u00c0-\u00ff\u0160\u0161\u017d\u017e\u0152\u0153\u0178]+")
WORD = re.compile(r"[^\W\d_]+")
OUT_OF_MEMORY = re.compile(r"[mc]alloc|out of memory", re.IGNORECASE)


def out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(OUT_OF_MEMORY.search(str(error)))


def cmap_codec(name: str) -> str | None:
    """The codec for the codes of a font whose encoding is the predefined CMap `name`, if they are one's bytes."""
    if "UCS2" in name or "UTF" in name or name.startswith("Identity"):
        return None
    return next((codec for pattern, codec in CMAPS if pattern.search(name)), None)


def needs_positions(text: str) -> bool:
    """Whether text may have been put in the wrong order, or spread, so that only the characters' places tell."""
    if SPREAD.search(text) or BROKEN.search(text) or HEBREW.search(text):
        return True
    return bool(RIGHT_TO_LEFT.search(text) and DIGITS.search(text))


class Drawn:
    """What has been drawn on a page, by place: fake bold and shadows draw a character again a hair's breadth away."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], list[tuple[float, float]]] = {}

    def is_new(self, character: str, x: float, y: float, size: float) -> bool:
        """Note a character; False where the same one is within a tenth of its size already. Blanks are always new."""
        if character.isspace():
            return True
        near = 0.1 * size
        band = int(y // 4)
        for key in (band - 1, band, band + 1):
            if any(abs(x - a) < near and abs(y - b) < near for a, b in self._seen.get((character, key), ())):
                return False
        self._seen.setdefault((character, band), []).append((x, y))
        return True


def by_position(characters: list[Character], upright: bool) -> str:
    """The text of a line from its characters, in reading order as far as the library knows it.

    Hebrew is read from right to left. Elsewhere a run of digits whose places fall is turned
    round: numbers run from left to right in every script. Blanks that only wide tracking has made are left out.
    """
    text = "".join(c.text for c in characters)
    if not upright or len(text) != len(characters):
        return text
    if HEBREW.search(text) and (ordered := pdf_bidi.from_the_right(characters)):
        return ordered
    for match in DIGITS.finditer(text):
        start, end = match.span()
        xs = [c.x for c in characters[start:end]]
        if all(a > b for a, b in pairwise(xs)):
            text = text[:start] + text[start:end][::-1] + text[end:]
    if SPREAD.search(text):
        return _joined(text, characters)
    return _at_pitch(text, characters) if BROKEN.search(text) else text


def _at_pitch(text: str, characters: list[Character]) -> str:
    """In a line whose letters stand at one distance, leave out the blanks that do not take a place of their own."""
    shown = [i for i, c in enumerate(characters) if not c.text.isspace()]
    steps = [characters[b].x - characters[a].x for a, b in pairwise(shown) if b == a + 1]
    if len(steps) < 5:
        return text
    pitch = statistics.median(steps)
    if sum(abs(step - pitch) < 0.02 * pitch for step in steps) < 0.9 * len(steps):
        return text
    needless = {a + 1 for a, b in pairwise(shown) if b == a + 2 and characters[b].x - characters[a].x < 1.5 * pitch}
    return "".join(c for i, c in enumerate(text) if i not in needless)


def _joined(text: str, characters: list[Character]) -> str:
    """Leave out the blanks in gaps of the width that parts letters, and keep those in the clearly wider ones."""
    gaps: dict[int, float] = {}
    previous: int | None = None
    for i, character in enumerate(characters):
        if character.text.isspace():
            continue
        if previous is not None:
            gaps[i] = character.left - characters[previous].right
        previous = i
    if len(gaps) < 5:
        return text
    usual = statistics.median(gaps.values())
    kept = []
    for i, letter in enumerate(text):
        if not letter.isspace():
            if i in gaps and text[i - 1].isspace() and gaps[i] > max(1.6 * usual, usual + 1.0):
                kept.append(" ")
            kept.append(letter)
    return "".join(kept)


def mend(text: str, codec: str | None) -> str:
    """Decode what a legacy CMap's codes or a code page's bytes have been taken for; name no control character text."""
    if codec:
        text = re.sub(r"[^\n]*[\x80-\x9f][^\n]*", lambda line: _decoded(line.group(), codec), text)
    text = _cyrillic(text)
    return CONTROL.sub(REPLACEMENT, text) if CONTROL.search(text) else text


def _decoded(line: str, codec: str) -> str:
    codes = [STANDARD_ENCODING.get(c, ord(c)) for c in line]
    if max(codes) > 255:
        return line
    try:
        return bytes(codes).decode(codec)
    except UnicodeDecodeError:
        return line


def _cyrillic(text: str) -> str:
    """windows-1251 taken for windows-1252: whole words of accented letters, which no language has many of."""
    words = WORD.findall(text)
    letters = sum(map(len, words))
    wrong = sum(len(word) for word in words if len(word) > 3 and ACCENTED.fullmatch(word))
    if not letters or wrong < 0.4 * letters:
        return text

    def turned(match: re.Match[str]) -> str:
        return match.group().encode("cp1252", "replace").decode("cp1251", "replace")

    return ACCENTED.sub(turned, text)


def doubts(text: str) -> list[str]:
    """Why a text is likely wrong, in short codes; [] where nothing speaks against it."""
    visible = sum(not c.isspace() for c in text)
    if not visible:
        return []
    found = []
    if text.count(REPLACEMENT) > 0.05 * visible:
        found.append("undecoded_characters")
    if sum("\ue000" <= c <= "\uf8ff" or c > "\U000f0000" for c in text) > 0.1 * visible:
        found.append("private_use_characters")
    if not text.isascii() and _mixed_words(text) > 0.2:
        found.append("mixed_scripts")
    return found


def _mixed_words(text: str) -> float:
    """The share of words that mix scripts within themselves, among the first ones."""
    words = [word for word in WORD.findall(text[:20000]) if len(word) > 2]
    scripts = (frozenset(map(_script, word)) - {"", "COMMON"} for word in words)
    return sum(len(found) > 1 and not found <= EAST_ASIAN for found in scripts) / max(len(words), 1)


EAST_ASIAN = frozenset(
    ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "IDEOGRAPHIC", "LATIN", "FULLWIDTH", "HALFWIDTH")
)
NAMES = {"MODIFIER": "COMMON", "COMBINING": "COMMON", "MATHEMATICAL": "COMMON", "MICRO": "GREEK"}


def _script(character: str) -> str:
    first = unicodedata.name(character, "").partition(" ")[0]
    return NAMES.get(first, first)
