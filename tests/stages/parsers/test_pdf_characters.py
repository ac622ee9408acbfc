"""Lines put together from the places of their characters."""

from __future__ import annotations

from stages.parsers import pdf_repair
from stages.parsers.pdf_bidi import Character


def placed(text: str, pitch: float = 7.0, right: float | None = None) -> list[Character]:
    """Characters side by side in the order given; from the right edge leftwards where that is named."""
    found = []
    for i, character in enumerate(text):
        x = i * pitch if right is None else right - (i + 1) * pitch
        found.append(Character(character, x, x + pitch - 0.5, x))
    return found


def test_blanks_inside_the_words_of_evenly_spaced_text_go() -> None:
    characters: list[Character] = []
    for word in ("Test", "i", "ng", "Dedupl", "i", "cat", "i", "on"):
        start = characters[-1].x + 7 if characters else 0.0
        if word == "Dedupl":
            start += 5  # the one real gap
        if characters:
            characters.append(Character(" ", start - 3, start, start - 3))
        characters += [Character(c, start + 7 * i, start + 7 * i + 6, start + 7 * i) for i, c in enumerate(word)]
    assert "".join(c.text for c in characters) == "Test i ng Dedupl i cat i on"
    assert pdf_repair.by_position(characters, upright=True) == "Testing Deduplication"


def test_single_letters_that_are_words_stay() -> None:
    text = "a b and c or d"
    assert pdf_repair.by_position(placed(text), upright=True) == text


def test_hebrew_is_read_from_the_right_with_its_punctuation_at_the_end() -> None:
    words = "שלום עולם?"
    characters = placed(words, right=400)
    drawn = [characters[-1], *characters[:-1]]  # the library puts the mark first
    assert pdf_repair.by_position(drawn, upright=True) == words


def test_numbers_and_latin_words_in_hebrew_keep_their_direction() -> None:
    seen_from_the_right = "סעיף 51 nohtyP לחוק"
    characters = placed(seen_from_the_right, right=400)
    assert pdf_repair.by_position(characters, upright=True) == "סעיף 15 Python לחוק"


def test_arabic_letters_that_share_a_glyph_keep_their_order() -> None:
    characters = [Character("ا", 20, 26, 20), Character("ل", 10, 20, 10), Character("ا", 20, 20, 20)]
    assert pdf_repair.by_position(characters, upright=True) == "الا"
