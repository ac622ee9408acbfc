from __future__ import annotations

from pathlib import Path

import click
import pytest

from jobs.fetch_models import fetch
from stages.core import models


def test_embedding_model_is_complete_and_fetched_once(tmp_path: Path) -> None:
    target = tmp_path / "models" / "all-minilm-l6-v2"
    assert fetch(target) is True
    models.check("model", str(target))
    assert (target / "model.safetensors").stat().st_size > 50_000_000
    assert fetch(target) is False


def test_a_link_whose_package_went_is_mended(tmp_path: Path) -> None:
    target = tmp_path / "all-minilm-l6-v2"
    target.symlink_to("gone")
    assert fetch(target) is True
    assert (target / "config.json").is_file()


def test_an_unknown_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="smollm2-135m-instruct"):
        fetch(tmp_path / "smollm")
    assert list(tmp_path.iterdir()) == []
