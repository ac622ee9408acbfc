"""Embeddings from any URL that speaks OpenAI's embeddings protocol."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
import numpy as np
from numpy.typing import NDArray
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt
from tenacity.wait import wait_base, wait_random_exponential

from stages.engines.embedding import Embedded, EmbeddingSpec, Failure, unit_length

BATCH = 64
LONGEST_WAIT_S = 60.0
REFUSED = frozenset({400, 413, 422})
"""The endpoint does not take what is in the request: one text of it may be to blame."""
TRANSIENT = frozenset({408, 409, 425, 429})

Vectors = NDArray[np.float32]


class BadAnswerError(RuntimeError):
    """The endpoint answered 200 with something that is not one vector per text."""


class OpenAIEmbeddings:
    """A client of `{url}/embeddings`, with `max_in_flight` requests of `batch_size` texts at once.

    Connection errors, timeouts, 408, 409, 425, 429 and 5xx are tried again, up to `max_attempts` times in all, after
    the time that Retry-After asks for or an exponential back-off with jitter. A request that is refused for its content
    is halved until the text to blame stands alone.
    """

    def __init__(
        self,
        spec: EmbeddingSpec,
        *,
        batch_size: int | None = None,
        max_in_flight: int = 8,
        max_attempts: int = 6,
        timeout_s: float = 60.0,
        backoff_s: float = 1.0,
    ) -> None:
        if not spec.url:
            raise ValueError("the engine `openai` needs a url")
        self.spec = spec
        self.batch_size = batch_size or BATCH
        self._dimensions = spec.dimensions
        headers = {}
        if spec.api_key_env:
            key = os.environ.get(spec.api_key_env)
            if not key:
                raise ValueError(f"the environment has no variable {spec.api_key_env}, which should hold the API key")
            headers["authorization"] = f"Bearer {key}"
        limits = httpx.Limits(max_connections=max_in_flight)
        self._client = httpx.Client(headers=headers, timeout=timeout_s, limits=limits)
        self._pool = ThreadPoolExecutor(max_in_flight, thread_name_prefix="embeddings")
        self._retrying = Retrying(
            retry=retry_if_exception(_transient),
            stop=stop_after_attempt(max_attempts),
            wait=_Wait(wait_random_exponential(multiplier=backoff_s, max=LONGEST_WAIT_S)),
            reraise=True,
        )

    @property
    def dimensions(self) -> int | None:
        return self._dimensions

    def documents(self, texts: Sequence[str]) -> Embedded:
        return self._embed([(self.spec.document_prefix or "") + text for text in texts])

    def query(self, text: str) -> Vectors:
        done = self._embed([(self.spec.query_prefix or "") + text])
        if done.failures:
            raise RuntimeError(done.failures[0].message)
        return done.vectors[0]

    def _embed(self, texts: list[str]) -> Embedded:
        failures: dict[int, Failure] = {}
        starts = range(0, len(texts), self.batch_size)
        parts = list(self._pool.map(lambda s: self._batch(texts[s : s + self.batch_size], s, failures), starts))
        found = [vector for part in parts for vector in part]
        if self._dimensions is None:
            self._dimensions = next((len(v) for v in found if v is not None), None)
        width = self._dimensions or 0
        vectors = np.full((len(texts), width), np.nan, np.float32)
        for i, vector in enumerate(found):
            if vector is not None and len(vector) == width:
                vectors[i] = vector
            elif vector is not None:
                message = f"{self.spec.url} gave {len(vector)} dimensions where {width} were expected"
                failures[i] = Failure("wrong_dimensions", message, "ValueError")
        if self.spec.normalize:
            vectors = unit_length(vectors)
        # The protocol does not say whether a text was cut.
        return Embedded(vectors, [None] * len(texts), failures)

    def _batch(self, texts: list[str], start: int, failures: dict[int, Failure]) -> list[Vectors | None]:
        """A vector or None for each text; `failures` takes the reasons, by position from `start`."""
        try:
            return list(self._retrying(self._request, texts))
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in REFUSED and len(texts) > 1:
                half = len(texts) // 2
                return self._batch(texts[:half], start, failures) + self._batch(texts[half:], start + half, failures)
            reason = "refused" if status in REFUSED else "rate_limited" if status == 429 else "endpoint_error"
            message = f"{self.spec.url} answered {status}: {error.response.text[:500]}"
            why = Failure(reason, message, f"HTTP{status}")
        except httpx.TimeoutException as error:
            why = Failure("timeout", f"{self.spec.url} did not answer in time", type(error).__name__)
        except httpx.HTTPError as error:
            why = Failure("endpoint_unreachable", f"cannot reach {self.spec.url}: {error}", type(error).__name__)
        except BadAnswerError as error:
            why = Failure("bad_answer", f"{self.spec.url}: {error}", type(error).__name__)
        failures.update((start + i, why) for i in range(len(texts)))
        return [None] * len(texts)

    def _request(self, texts: list[str]) -> list[Vectors]:
        body: dict[str, object] = {"model": self.spec.model, "input": texts, "encoding_format": "float"}
        if self.spec.dimensions:
            body["dimensions"] = self.spec.dimensions
        answer = self._client.post(f"{str(self.spec.url).rstrip('/')}/embeddings", json=body)
        answer.raise_for_status()
        try:
            data = sorted(answer.json()["data"], key=lambda item: item["index"])
            vectors = [np.asarray(item["embedding"], dtype=np.float32) for item in data]
        except (ValueError, KeyError, TypeError) as error:
            raise BadAnswerError(f"not an answer of the embeddings protocol: {answer.text[:200]}") from error
        if len(vectors) != len(texts) or any(v.ndim != 1 or not len(v) for v in vectors):
            raise BadAnswerError(f"{len(vectors)} vectors for {len(texts)} texts")
        return vectors


def _transient(error: BaseException) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in TRANSIENT or error.response.status_code >= 500
    return isinstance(error, (httpx.TransportError, BadAnswerError))


class _Wait(wait_base):
    """As long as Retry-After asks for (seconds or a date), else the back-off."""

    def __init__(self, backoff: wait_base) -> None:
        self.backoff = backoff

    def __call__(self, retry_state: RetryCallState) -> float:
        error = retry_state.outcome.exception() if retry_state.outcome else None
        asked = retry_after_s(error.response) if isinstance(error, httpx.HTTPStatusError) else None
        return self.backoff(retry_state) if asked is None else min(asked, LONGEST_WAIT_S)


def retry_after_s(response: httpx.Response) -> float | None:
    """Seconds that the Retry-After header of `response` asks to wait; None where it has none that can be read."""
    value = response.headers.get("retry-after", "").strip()
    if not value:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max((date - datetime.now(UTC)).total_seconds(), 0.0)
