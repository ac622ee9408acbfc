"""Stages by name: ours, and those of a user's own package."""

from __future__ import annotations

from pathlib import Path

import pytest
from own.shout import Shout

from stages.clean import Clean
from stages.core.errors import ConfigError
from stages.core.registry import find, known
from stages.core.stage import Stage
from stages.write_lancedb import WriteLancedb


def test_our_own_go_by_the_name_of_their_module() -> None:
    assert {"read", "parse", "clean", "filter", "chunk", "embed", "checkpoint", "write_parquet"} <= known().keys()
    assert find("clean") is Clean
    assert find("write_lancedb") is WriteLancedb
    for name in known():
        stage = find(name)
        assert issubclass(stage, Stage)
        assert stage.kind() == name


def test_a_stage_of_ones_own_goes_by_its_dotted_path() -> None:
    assert find("own.shout") is Shout
    assert find("own.shout.Shout") is Shout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("claen", "did you mean 'clean'"),
        ("Parse", "did you mean 'parse'"),
        ("xyzzy", "known: checkpoint, chunk"),
        ("", "known:"),
        ("own.shuot", "No module named"),
        ("own.shout.Shuot", "No module named"),
        ("own", "no such stage"),
        ("json.decoder", "0 stages"),
        ("nowhere.at.all", "No module named 'nowhere'"),
        (".relative", "no such stage"),
        ("../path", "no such stage"),
        ("own..shout", "no such stage"),
        ("own.shout:Shout", "no such stage"),
        ("os.path", "0 stages"),
    ],
)
def test_what_is_no_stage_is_refused_by_name(name: str, said: str) -> None:
    if said == "no such stage" and ":" in name:
        assert find(name) is Shout  # the way entry points write it
        return
    with pytest.raises(ConfigError) as error:
        find(name)
    assert error.value.field == name
    assert said in str(error.value)


def test_errors_in_a_stage_of_ones_own_are_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(work)
    Path("broken_stages").mkdir()
    Path("broken_stages/__init__.py").touch()
    Path("broken_stages/imports.py").write_text("import a_library_that_is_not_there\n")
    Path("broken_stages/syntax.py").write_text("def broken(:\n")
    Path("broken_stages/two.py").write_text(
        "from stages.core.stage import Stage\nclass A(Stage): pass\nclass B(Stage): pass\n"
    )
    with pytest.raises(ConfigError, match="a_library_that_is_not_there"):
        find("broken_stages.imports")
    with pytest.raises(ConfigError, match="invalid syntax"):
        find("broken_stages.syntax")
    with pytest.raises(ConfigError, match="2 stages"):
        find("broken_stages.two")
    assert find("broken_stages.two.B").kind() == "broken_stages.two.B"
