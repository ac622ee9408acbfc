"""What can be measured of texts: each takes an array of strings and gives one number per string."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Measure = Callable[[pa.Array], np.ndarray]

# Scripts that put no space between words, with the characters that a word takes on average.
_TWO = r"\p{Han}\p{Hiragana}\p{Katakana}\x{30fc}"
_FIVE = r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
_SPACED = rf"[^\p{{Z}}\p{{C}}\p{{P}}\p{{S}}{_TWO}{_FIVE}]+"
_WORD = rf"[{_TWO}]{{1,2}}|[{_FIVE}]{{1,5}}|{_SPACED}(?:['’\-]{_SPACED})*"


def chars(texts: pa.Array) -> np.ndarray:
    """Characters (code points), without white space at the ends."""
    return pc.utf8_length(pc.utf8_trim_whitespace(texts)).to_numpy()


def words(texts: pa.Array) -> np.ndarray:
    """Words: runs of letters, marks and digits. Chinese and Japanese count two characters a word; Thai, Lao, Khmer,
    Burmese and Tibetan five: an estimate, since these scripts do not write where a word ends."""
    return pc.count_substring_regex(texts, _WORD).to_numpy()


def alpha_share(texts: pa.Array) -> np.ndarray:
    """Letters and their marks, in any script, as a share of all characters but white space; 0 where there are none."""
    letters = pc.utf8_length(pc.replace_substring_regex(texts, r"[^\p{L}\p{M}]+", "")).to_numpy()
    visible = pc.utf8_length(pc.replace_substring_regex(texts, r"[\s\p{Z}]+", "")).to_numpy()
    return letters / np.maximum(visible, 1)


def repeated_lines(texts: pa.Array) -> np.ndarray:
    """Lines equal to an earlier line of the same text, as a share of its lines; blank lines do not count."""
    lines = pc.split_pattern(texts, "\n")
    table = pa.table({"text": pc.list_parent_indices(lines), "line": pc.utf8_trim_whitespace(pc.list_flatten(lines))})
    table = table.filter(pc.not_equal(table["line"], ""))
    all_lines = np.bincount(table["text"].to_numpy(), minlength=len(texts))
    distinct = table.group_by(["text", "line"]).aggregate([])
    once = np.bincount(distinct["text"].to_numpy(), minlength=len(texts))
    return (all_lines - once) / np.maximum(all_lines, 1)
