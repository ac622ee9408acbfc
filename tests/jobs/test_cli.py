"""The command: quick to answer, and one line and exit code 2 for whatever is wrong, before any work."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jobs.cli import main

PIPELINE = """
name: p
stages:
  - read: {uri: docs}
  - parse: {timeout_s: 5}
  - checkpoint
  - chunk: {size: 100}
  - write_parquet: {uri: out}
"""


@pytest.fixture(autouse=True)
def folder(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline and a document in the working directory; no cluster, nothing that it adds to paths stays."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("p.yaml").write_text(PIPELINE)
    Path("docs").mkdir()
    Path("docs/a.txt").write_text("a document")
    return work


def batchmill(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def refused(*arguments: str) -> str:
    """The one line that a wrong configuration gets."""
    before = sorted(Path().rglob("*"))
    result = batchmill(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert sorted(Path().rglob("*")) == before
    return result.stderr.strip()


def said_in_one_line(text: str) -> str:
    assert text.startswith("configuration: ")
    assert "\n" not in text
    return text.removeprefix("configuration: ")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "jobs.cli", *arguments], capture_output=True, text=True, check=False)


HEAVY = {"ray", "torch", "pyarrow", "pydantic", "pandas", "numpy", "yaml", "fsspec", "transformers", "lancedb"}


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    code = "import sys, jobs.cli; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        done = command("--help")
        times.append(time.perf_counter() - started)
        assert done.returncode == 0
    assert "plan" in done.stdout
    assert "exit codes" in done.stdout.lower()
    assert min(times) < 1


@pytest.mark.parametrize("name", ["run", "plan", "report", "outcomes", "search"])
def test_every_command_explains_itself(name: str) -> None:
    result = batchmill(name, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_plan_validates_and_shows_and_writes_nothing() -> None:
    before = sorted(Path().rglob("*"))
    result = batchmill("plan", "p.yaml", "--set", "chunk.size=77", "--run-dir", "run")
    assert result.exit_code == 0, result.output
    for part in (
        "pipeline p",
        "read",
        "parse",
        "size: 77",
        "committed as parse-",
        "1 sources in 1 units",
        "1 units to work",
    ):
        assert part in result.output
    assert sorted(Path().rglob("*")) == before
    assert batchmill("plan", "p.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        (("timeout_s", "timeuot_s"), (), "parse.timeuot_s: there is no such field (did you mean 'timeout_s'?)"),
        (("parse:", "prase:"), (), "prase: no such stage (did you mean 'parse'?)"),
        (("stages:", "satges:"), (), "satges: there is no such field (did you mean 'stages'?)"),
        (("timeout_s: 5", "timeout_s: 0"), (), "parse.timeout_s: input should be greater than"),
        (("size: 100", "size: 100, overlap: 100"), (), "chunk"),
        (("size: 100", "size: 100, num_cpus: 9999"), (), "chunk.num_cpus: asks for 9999 CPUs"),
        (("size: 100", "size: 100, num_gpus: 99"), (), "chunk.num_gpus: asks for 99 GPUs"),
        (("uri: docs", "uri: dosc"), (), "read.uri: dosc does not exist"),
        (("uri: docs", "uri: [docs, s4://bucket]"), (), "read.uri: "),
        (("uri: out", "uri: p.yaml/out"), (), "write_parquet.uri: p.yaml/out cannot be written to"),
        (("uri: out", "uri: /proc/batchmill"), (), "write_parquet.uri: /proc/batchmill cannot be written to"),
        (("uri: out", "uri: s4://bucket/out"), (), "write_parquet.uri: s4://bucket/out cannot be written to"),
        (("name: p", "name: p\nmax_failed: 7"), (), "max_failed: 7 is no share"),
        ((), ("--set", "chunk.sise=5"), "chunk.sise: there is no such field (did you mean 'size'?)"),
        ((), ("--set", "chnuk.size=5"), "chnuk.size: the pipeline has no stage 'chnuk' (did you mean 'chunk'?)"),
        ((), ("--set", "chunk.size"), "chunk.size: write it as stage.field=value"),
        ((), ("--set", "chunk.size=-5"), "chunk.size: input should be greater than"),
        ((), ("--set", "embed.model=x"), "embed.model: the pipeline has no stage 'embed'"),
    ],
)
@pytest.mark.parametrize("name", ["plan", "run"])
def test_what_is_wrong_is_refused_with_its_field_and_the_nearest_name(
    name: str, change: tuple[str, str] | tuple[()], arguments: tuple[str, ...], said: str
) -> None:
    Path("p.yaml").write_text(PIPELINE.replace(*change) if change else PIPELINE)
    run_dir = ("--run-dir", "run") if name == "run" else ()
    assert said_in_one_line(refused(name, "p.yaml", *run_dir, *arguments)).startswith(said)


def test_files_and_run_directories_that_cannot_be() -> None:
    assert said_in_one_line(refused("run", "none.yaml", "--run-dir", "run")) == "none.yaml: there is no such file"
    Path("list.yaml").write_text("name: [\nstages: []")
    assert "list.yaml: is not valid YAML: " in refused("plan", "list.yaml")
    assert said_in_one_line(refused("plan", "docs")).startswith("docs: cannot be read")
    assert "run_dir: p.yaml/run cannot be written to" in refused("run", "p.yaml", "--run-dir", "p.yaml/run")
    assert "Missing option '--run-dir'" in refused("run", "p.yaml")
    assert said_in_one_line(refused("report", "docs")).startswith("RUN_DIR: ")
    assert said_in_one_line(refused("outcomes", "nowhere")).startswith("RUN_DIR: ")
    assert "-1 is not in the range" in refused("outcomes", "docs", "--limit", "-1")
    assert "No such command 'rnu'" in refused("rnu", "p.yaml")


def test_a_folder_without_documents_is_refused() -> None:
    Path("docs/a.txt").unlink()
    result = batchmill("run", "p.yaml", "--run-dir", "run")
    assert result.exit_code == 2
    assert said_in_one_line(result.stderr.strip()).startswith("read.uri: there is no document under it")


def test_a_directory_of_somebody_else_is_refused() -> None:
    Path("out").mkdir()
    Path("out/theirs.parquet").write_bytes(b"PAR1")
    assert "theirs.parquet, which is not ours" in refused("run", "p.yaml", "--run-dir", "run")


def test_a_refusal_takes_a_second_and_starts_nothing() -> None:
    Path("p.yaml").write_text(PIPELINE.replace("parse:", "prase:"))
    times = []
    for _ in range(2):
        started = time.perf_counter()
        done = command("run", "p.yaml", "--run-dir", "run")
        times.append(time.perf_counter() - started)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "configuration: prase: no such stage (did you mean 'parse'?)\n"
    assert min(times) < 3
    assert not Path("run").exists()


def test_stages_of_ones_own_are_found_where_the_command_is_given() -> None:
    Path("mine_for_cli.py").write_text("from stages.core.stage import Stage\nclass Mine(Stage):\n    depth: int = 1\n")
    Path("p.yaml").write_text("{name: p, stages: [read: {uri: docs}, mine_for_cli.Mine: {depth: 3}]}")
    done = command("plan", "p.yaml")
    assert done.returncode == 0, done.stderr
    assert "depth: 3" in done.stdout
