"""Where units enter and leave: after work that is committed, past every mark that has to hold them."""

from __future__ import annotations

import random

import pytest
from own.shout import Shout

from connectors.storage import Place
from pipelines.catalogue import Unit
from pipelines.checkpoint import Checkpoint
from pipelines.execute import Segment, Work, plan_work
from stages.read import SOURCES


def segments(n: int) -> tuple[Segment, ...]:
    return tuple(
        Segment((Shout(name=f"a{k}"), Shout(name=f"b{k}")), Checkpoint(Place(f"mark{k}"), f"{k}", ())) for k in range(n)
    )


def units(n: int) -> list[Unit]:
    return [Unit(f"u{k}", SOURCES.empty_table(), 1) for k in range(n)]


def planned(has: dict[str, str], required: str) -> Work:
    """`has` and `required` name marks by letters from a."""
    committed = [{unit for unit, marks in has.items() if mark in marks} for mark in "abcdefgh"[: len(required)]]
    return plan_work(
        [Unit(name, SOURCES.empty_table(), 1) for name in has],
        segments(len(required)),
        [mark.isupper() for mark in required],
        committed,
    )


def way(work: Work, unit: str) -> tuple[list[int], list[int]]:
    entering = [n for n, entries in enumerate(work.entering) if unit in {entry.id for entry in entries}]
    return entering, [n for n, leaving in enumerate(work.leaving) if unit in leaving]


@pytest.mark.parametrize(
    ("has", "required", "expected"),
    [
        ("", "abC", ([0], [2])),
        ("a", "abC", ([1], [2])),
        ("ab", "abC", ([2], [2])),
        ("b", "abC", ([2], [2])),  # an optional mark that is missing is nobody's loss
        ("abc", "abC", ([], [])),
        ("c", "abC", ([], [])),
        ("bc", "AbC", ([0], [0])),  # a sink put in later
        ("c", "aBC", ([0], [1])),
        ("ac", "aBC", ([1], [1])),
    ],
)
def test_cases(has: str, required: str, expected: tuple[list[int], list[int]]) -> None:
    assert way(planned({"u": has}, required), "u") == expected


def test_nothing_is_left_where_all_is_committed() -> None:
    work = planned({"u": "ab", "v": "ab"}, "AB")
    assert work.units == 0
    assert work.active == ()


def test_stages_are_active_from_the_first_entry_to_the_last_exit() -> None:
    assert [s.label for s in planned({"u": "a"}, "abC").active] == ["a1", "b1", "a2", "b2"]
    assert [s.label for s in planned({"u": "bc"}, "AbC").active] == ["a0", "b0"]
    assert [s.label for s in planned({"u": "bc", "v": "ab"}, "AbC").active] == ["a0", "b0", "a2", "b2"]


@pytest.mark.parametrize("seed", range(200))
def test_every_unit_enters_after_committed_work_and_passes_every_missing_mark(seed: int) -> None:
    chance = random.Random(seed)
    marks = chance.randrange(1, 6)
    required = [chance.random() < 0.5 for _ in range(marks - 1)] + [True]
    all_units = units(chance.randrange(1, 12))
    committed = [{unit.id for unit in all_units if chance.random() < 0.4} for _ in range(marks)]
    work = plan_work(all_units, segments(marks), required, committed)
    passed: set[int] = set()
    for unit in all_units:
        entering, leaving = way(work, unit.id)
        assert len(entering) == len(leaving)
        spans = list(zip(sorted(entering), sorted(leaving), strict=True))
        for start, end in spans:
            assert start <= end
            assert start == 0 or unit.id in committed[start - 1]
            passed |= set(range(start, end + 1))
        missing = {n for n in range(marks) if required[n] and unit.id not in committed[n]}
        covered = {n for start, end in spans for n in range(start, end + 1)}
        assert missing <= covered
        assert not spans or missing
        assert all(end in missing for _, end in spans)
    assert set(work.active) == {stage for n in passed for stage in segments(marks)[n].stages}
    ordered = [entry.id for entries in work.entering for entry in entries]
    assert len(ordered) == work.units
