"""The declaration of a stage: its checks, its names, and what its fingerprint covers."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from own.shout import Shout
from own.words import Words
from pydantic import ValidationError

from stages.core.stage import Stage, code_hash, operational
from stages.filter import Filter
from stages.read import Read


def test_a_stage_is_frozen_and_takes_no_unknown_field() -> None:
    with pytest.raises(ValidationError):
        Shout(endnig="?")  # type: ignore[call-arg]
    stage = Shout()
    with pytest.raises(ValidationError):
        stage.ending = "?"


@pytest.mark.parametrize("concurrency", [0, -1, [3, 1], [0, 2], [1], [1, 2, 3], "many", 1.5, True, [1, "2"], {}])
def test_concurrency_out_of_range_is_refused_in_one_sentence(concurrency: Any) -> None:
    with pytest.raises(ValidationError, match="a number from 1, or \\[least, most\\]") as error:
        Words(concurrency=concurrency)
    assert [problem["loc"] for problem in error.value.errors()] == [("concurrency",)]


def test_concurrency_is_a_number_or_a_range() -> None:
    assert Words().actors() == (1, 1)
    assert Words(concurrency=3).actors() == (3, 3)
    assert Words.model_validate({"concurrency": [1, 4]}).actors() == (1, 4)


@pytest.mark.parametrize(
    "field",
    [
        {"num_cpus": -1},
        {"num_gpus": -0.5},
        {"num_cpus": float("inf")},
        {"num_cpus": float("nan")},
        {"batch_size": 0},
        {"memory": "much"},
        {"name": ""},
        {"name": "a/b"},
        {"name": "../up"},
        {"name": ".hidden"},
        {"name": "x" * 65},
    ],
)
def test_values_out_of_range_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Shout(**field)


def test_names() -> None:
    assert (Read.kind(), Filter.kind(), Shout.kind()) == ("read", "filter", "own.shout")
    assert Shout().label == "own.shout"
    assert Shout(name="größer-2.b").label == "größer-2.b"


def test_the_fingerprint_covers_what_decides_the_result() -> None:
    assert Shout().fingerprint() == Shout(ending="!").fingerprint()
    assert Shout().fingerprint() != Shout(ending="?").fingerprint()
    assert Shout().fingerprint() != Words().fingerprint()
    operational = {"name": "x", "num_cpus": 3, "num_gpus": 0.5, "memory": "1GiB", "concurrency": 4, "batch_size": 7}
    assert Shout(**operational, log=Path("log")).fingerprint() == Shout().fingerprint()
    assert Read(uri="a", include="*.pdf", unit_docs=3).fingerprint() == Read(uri="b").fingerprint()
    assert Read(uri="a", max_bytes=5).fingerprint() != Read(uri="a").fingerprint()


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    code = "from own.shout import Shout; print(Shout(ending='?').fingerprint())"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environment(PYTHONHASHSEED=seed),
        )
        assert done.stdout.strip() == Shout(ending="?").fingerprint()


def environment(**changed: str) -> dict[str, str]:
    import os

    return {**os.environ, **changed}


CODE = '''"""A module."""

import pyarrow as pa

from stages.core.stage import Stage


class Mine(Stage):
    size: int = 1

    def open(self):
        def worker(rows: pa.Table) -> pa.Table:
            return rows

        return worker
'''


@pytest.fixture
def module(work: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(work)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"mine_{abs(hash(work))}"
    Path(f"{name}.py").write_text(CODE)
    return name


def rewritten(module: str, old: str, new: str) -> str:
    """The hash of the module with `old` replaced, as a new process sees it."""
    assert old in CODE
    Path(f"{module}.py").write_text(CODE.replace(old, new))
    sys.modules.pop(module, None)
    importlib.invalidate_caches()
    import linecache

    linecache.checkcache()
    found = code_hash((module,))
    Path(f"{module}.py").write_text(CODE)
    return found


def test_comments_and_blank_lines_do_not_change_the_code(module: str) -> None:
    was = rewritten(module, "size", "size")
    assert rewritten(module, "size: int = 1", "size: int = 1  # a comment") == was
    assert rewritten(module, "class Mine", "# a comment\n\nclass Mine") == was
    assert rewritten(module, "            return rows", "\n            # deep in here\n            return rows") == was
    assert rewritten(module, "        return worker\n", "        return worker\n\n\n# the end\n") == was
    assert rewritten(module, "size: int = 1", "size:   int  =  1") == was


def test_code_changes_the_code(module: str) -> None:
    was = rewritten(module, "size", "size")
    assert rewritten(module, "int = 1", "int = 2") != was
    assert rewritten(module, "return rows", "return rows.slice(1)") != was
    assert rewritten(module, "            return rows", "            if rows:\n                return rows") != was
    assert rewritten(module, "rows: pa.Table", "r\u00f6ws: pa.Table") != was


def test_a_comment_that_looks_like_none_counts(module: str) -> None:
    assert rewritten(module, '"""A module."""', 'X = "# no comment"') != rewritten(
        module, '"""A module."""', 'X = "# comment"'
    )


def test_two_stages_of_one_module_are_told_apart(module: str) -> None:
    Path(f"{module}.py").write_text(CODE + "\n\nclass Other(Mine):\n    pass\n")
    both = importlib.import_module(module)
    assert both.Mine.kind() == f"{module}.Mine"
    assert both.Other.kind() == f"{module}.Other"
    assert both.Mine().fingerprint() != both.Other().fingerprint()


def test_a_stage_that_was_typed_in_has_a_fingerprint() -> None:
    code = "from stages.core.stage import Stage\nclass Typed(Stage): size: int = 1\nprint(Typed().fingerprint())"
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 16


def test_a_field_is_marked_operational_by_its_declaration() -> None:
    class Marked(Stage):
        outcome: int = 1
        effort: int = operational(1, ge=0)

    assert Marked(effort=5).fingerprint() == Marked().fingerprint()
    assert Marked(outcome=5).fingerprint() != Marked().fingerprint()
    with pytest.raises(ValidationError):
        Marked(effort=-1)
