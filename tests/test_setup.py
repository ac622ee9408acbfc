"""The set-up: complete pins that name no host, pip's settings handed to uv, and nothing done twice."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(extra: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{extra}.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.+]+", line) for line in lines), "only pins: no host, no option"
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_every_requirement_is_pinned(extra: str) -> None:
    pinned = pins(extra)
    wanted = [*PROJECT["dependencies"]]
    for name in (extra, "dev", "models"):
        wanted += PROJECT["optional-dependencies"][name]
    for requirement in map(Requirement, wanted):
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}: run `make lock`"


def test_cpu_build_leaves_out_what_does_not_fit() -> None:
    assert pins("cpu")["torch"].endswith("+cpu")
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & pins("cpu").keys()
    assert "+" not in pins("gpu")["torch"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The set-up files of this checkout, and a `uv` that prints what it was told."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    bin_ = tmp_path / ".venv" / "bin"
    bin_.mkdir(parents=True)
    (bin_ / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (bin_ / "uv").write_text("#!/bin/sh\nenv | grep ^UV_\necho ARGUMENTS=$*\n")
    for program in bin_.iterdir():
        program.chmod(0o755)
    return tmp_path


def uv(checkout: Path, extra: str, **environment: str) -> dict[str, str]:
    clean = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", "HOME": str(checkout)}
    command = [str(checkout / "requirements" / "uv.sh"), extra, "pip", "list"]
    out = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in out.splitlines())


def test_torch_comes_from_find_links_that_have_it(checkout: Path) -> None:
    wheels = checkout / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    told = uv(checkout, "cpu", PIP_FIND_LINKS=f"/nowhere {wheels}")
    assert told == {"UV_FIND_LINKS": f"/nowhere,{wheels}", "ARGUMENTS": "pip list"}


def test_torch_comes_from_the_cpu_index_otherwise(checkout: Path) -> None:
    assert uv(checkout, "cpu") == {"UV_TORCH_BACKEND": "cpu", "ARGUMENTS": "pip list"}
    assert uv(checkout, "cpu", PIP_FIND_LINKS="/nowhere")["UV_TORCH_BACKEND"] == "cpu"
    assert uv(checkout, "cpu", UV_TORCH_BACKEND="") == {"ARGUMENTS": "pip list"}
    assert uv(checkout, "gpu") == {"ARGUMENTS": "pip list"}


def test_uv_hears_of_pips_indexes(checkout: Path) -> None:
    told = uv(checkout, "gpu", PIP_INDEX_URL="file:///a", PIP_EXTRA_INDEX_URL="file:///b file:///c")
    assert told["UV_DEFAULT_INDEX"] == "file:///a"
    assert told["UV_INDEX"] == "file:///b file:///c"
    assert told["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    settings = checkout / "pip.conf"
    settings.write_text("[global]\nindex-url = file:///d\n")
    assert uv(checkout, "gpu", PIP_CONFIG_FILE=str(settings))["UV_DEFAULT_INDEX"] == "file:///d"
    assert (
        uv(checkout, "gpu", PIP_INDEX_URL="file:///a", UV_DEFAULT_INDEX="file:///e")["UV_DEFAULT_INDEX"] == "file:///e"
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_setup_is_done_again_only_when_pins_change(checkout: Path) -> None:
    def plan(*arguments: str) -> str:
        command = ["make", "--dry-run", "setup", *arguments]
        return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout

    assert "--requirements requirements/cpu.txt" in plan()
    (checkout / ".venv" / ".installed-cpu").touch()
    assert "Nothing to be done" in plan()
    assert "--requirements requirements/gpu.txt" in plan("EXTRA=gpu")
    later = (checkout / ".venv" / ".installed-cpu").stat().st_mtime + 10
    os.utime(checkout / "requirements" / "cpu.txt", (later, later))
    assert "--requirements requirements/cpu.txt" in plan()
