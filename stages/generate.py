"""Prompts to answers, with a vLLM engine in the actor."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from stages.core.answers import Columns
from stages.core.errors import ConfigError
from stages.core.journal import Journal
from stages.core.outcome import Result, outcomes
from stages.core.prompts import Prompting, Structure, Template, fields_of, shortener
from stages.core.stage import Stage, Worker, operational
from stages.engines.spec import EngineSpec, Sampling
from stages.engines.text import RequestError, TextEngine


class Generate(Stage):
    """Adds the answer to each row: text, finish_reason, counts of tokens, and for structured output the parsed value,
    in columns that begin with `output`. Names of columns may also be names of fields in `metadata`.

    A row fails with `prompt_too_long`, `empty_prompt`, `missing_column`, `bad_template`, `bad_request` or `not_found`
    (an adapter that nobody declared), in the engine's words. Sampling parameters of the engine's spec yield to the
    stage's, and those to the row's own.
    """

    actor: ClassVar[bool] = True
    keeps_journal: ClassVar[bool] = True

    engine: EngineSpec = Field(description="the model and how it is run")
    prompt: str | None = Field(None, description="a column of prompts, which go to the model as they are")
    messages: str | None = Field(None, description="a column of conversations: lists of {role, content}")
    template: Template | None = Field(None, description="`system` and `user`, Jinja2 over the row's columns")
    sampling: Sampling = Sampling()
    sampling_column: str | None = Field(None, description="a column of sampling parameters, for each row its own")
    structured: Structure | None = Field(None, description="schema, regex, choice, grammar, or a column of those")
    adapter_column: str | None = Field(None, description="a column of adapters' names; null: the model itself")
    tools: tuple[dict[str, Any], ...] = Field((), description="functions that the model may call, in OpenAI's form")
    tool_choice: Literal["auto", "none", "required"] | None = None
    chat_template_kwargs: dict[str, Any] = Field({}, description="options of the model's chat template")
    add_special_tokens: bool | None = Field(None, description="for `prompt`; null: yes, unless it begins with one")
    on_overlong: Literal["fail", "truncate_left", "truncate_middle"] = Field(
        "fail", description="a prompt that leaves no room for its answer fails, or its longest text is cut"
    )
    output: str = Field("completion", pattern=r"^\w+$", description="the column of answers; others begin with it")

    units_in_flight: int = operational(8, ge=1, description="units whose rows are in the engine at the same time")
    commit_rows: int = operational(256, ge=1, description="answers after which a unit's are kept")
    commit_seconds: float = operational(10.0, gt=0, description="seconds after which new answers are kept")

    @model_validator(mode="before")
    @classmethod
    def _resources_of_the_engine(cls, values: Any) -> Any:
        """Ray sets aside for the actor what the engine's spec asks for."""
        engine = values.get("engine") if isinstance(values, dict) else None
        if engine is None:
            return values
        given = engine.model_dump(exclude_unset=True) if isinstance(engine, EngineSpec) else engine
        wanted = {key: given[key] for key in ("num_cpus", "num_gpus") if isinstance(given, dict) and key in given}
        return wanted | values

    @model_validator(mode="after")
    def _one_input(self) -> Generate:
        if sum(value is not None for value in (self.prompt, self.messages, self.template)) != 1:
            raise ValueError("give one of prompt, messages, template")
        if self.prompt is not None and self.tools:
            raise ValueError("tools need a conversation: give messages or template instead of prompt")
        return self

    @property
    def units_at_once(self) -> int:
        return self.units_in_flight

    def output_columns(self, columns: frozenset[str]) -> frozenset[str]:
        return columns | frozenset(self.columns().names())

    def columns(self) -> Columns:
        sampling = self.sampling.over(self.engine.sampling)
        return Columns(
            self.output,
            several=(sampling.n or 1) > 1,
            structured=self.structured is not None,
            logprobs=sampling.logprobs is not None,
            tools=bool(self.tools),
        )

    def check(self) -> None:
        self.engine.check(f"{self.label}.engine")
        if self.adapter_column and not self.engine.adapters:
            raise ConfigError(f"{self.label}.adapter_column", f"{self.label}.engine.adapters declares no adapter")

    def identity(self) -> dict[str, Any]:
        return self.engine.identity()

    @classmethod
    def code_modules(cls) -> tuple[str, ...]:
        parts = ("core.prompts", "core.answers", "engines.spec", "engines.vllm_engine")
        return (cls.__module__, *(f"stages.{part}" for part in parts))

    def open(self) -> Worker:
        from stages.engines.vllm_engine import VllmEngine

        return Generator(self, VllmEngine(self.engine))


class Generator:
    """The worker: several units may be in it at once, from several threads, and share the engine."""

    def __init__(self, stage: Generate, engine: TextEngine) -> None:
        self.stage, self.engine = stage, engine
        self.columns = stage.columns()
        self.prompting = Prompting.model_validate(stage.model_dump(include=set(Prompting.model_fields)))
        self._key = hashlib.sha256(stage.fingerprint().encode()).hexdigest()[:8]
        self._bos = getattr(engine.tokenizer, "bos_token", None)
        how = stage.on_overlong
        self._shorten = None if how == "fail" else shortener(how, engine.tokenizer, engine.max_model_len)
        self._gate = Gate()

    def alone(self) -> Any:
        """While this is held, no other thread has a row in the engine: what kills it now is to blame."""
        return self._gate.alone()

    def __call__(self, rows: pa.Table, journal: Journal | None = None) -> Result:
        with self._gate.together():
            return self._generate(rows, journal)

    def _generate(self, rows: pa.Table, journal: Journal | None) -> Result:
        requests: dict[int, dict[str, Any]] = {}
        failures: dict[int, RequestError] = {}
        for number, fields in enumerate(fields_of(rows)):
            try:
                request = self.prompting.request(fields, self.stage.engine.sampling, self._bos)
                if request.get("n", 1) > 1 and not self.columns.several:
                    raise RequestError(
                        "bad_request", f"set {self.stage.label}.sampling.n for several answers", "ValueError"
                    )
                requests[number] = self._shorten(request) if self._shorten else request
            except RequestError as error:
                failures[number] = error
        responses = self._answers(rows, requests, failures, journal)
        return self._result(rows, requests, responses, failures)

    def _answers(
        self,
        rows: pa.Table,
        requests: dict[int, dict[str, Any]],
        failures: dict[int, RequestError],
        journal: Journal | None,
    ) -> dict[int, dict[str, Any]]:
        """Responses by row; failures are put to the others. What the journal holds is not asked for again."""
        names = rows["chunk_id" if "chunk_id" in rows.column_names else "doc_id"].to_pylist()
        keys = {number: f"{self._key}.{names[number]}.{_digest(request)}" for number, request in requests.items()}
        kept = journal.load() if journal else {}
        responses = {number: json.loads(kept[key]) for number, key in keys.items() if key in kept}
        arrived: queue.SimpleQueue[tuple[int, Future[dict[str, Any]]]] = queue.SimpleQueue()
        # Prompts that begin alike go one after the other, while their beginning is in the prefix cache.
        waiting = sorted(requests.keys() - responses.keys(), key=lambda number: _beginning(requests[number]))
        for number in waiting:
            future = self.engine.submit(self.prompting.route, requests[number])
            future.add_done_callback(partial(_arrive, arrived, number))
        fresh: dict[str, str] = {}
        saved = time.monotonic()
        for left in range(len(waiting), 0, -1):
            number, future = self._next(arrived, journal, fresh, saved)
            try:
                responses[number] = future.result()
                fresh[keys[number]] = json.dumps(responses[number])
            except RequestError as error:
                failures[number] = error
            due = len(fresh) >= self.stage.commit_rows or time.monotonic() - saved >= self.stage.commit_seconds
            if journal and due and left > 1:
                journal.add(fresh)
                fresh, saved = {}, time.monotonic()
        return responses

    def _next(self, arrived: Any, journal: Journal | None, fresh: dict[str, str], saved: float) -> Any:
        """The next answer; while none comes, those that have come are kept when their time is up."""
        if journal and fresh:
            try:
                return arrived.get(timeout=max(saved + self.stage.commit_seconds - time.monotonic(), 0.01))
            except queue.Empty:
                journal.add(fresh)
                fresh.clear()
        return arrived.get()

    def _result(
        self,
        rows: pa.Table,
        requests: dict[int, dict[str, Any]],
        responses: dict[int, dict[str, Any]],
        failures: dict[int, RequestError],
    ) -> Result:
        done = sorted(responses)
        structures = self._structures(rows) if self.columns.structured else {}
        values = [self.columns.of(responses[number], structures.get(number, {})) for number in done]
        ok = rows.take(pa.array(done, pa.int64()))
        for position, field in enumerate(self.columns.fields()):
            column = pa.array([value[position] for value in values], field.type)
            at = ok.schema.get_field_index(field.name)
            ok = ok.append_column(field, column) if at < 0 else ok.set_column(at, field, column)
        if not failures:
            return Result(ok)
        bad = sorted(failures)
        why = [failures[number] for number in bad]
        lost = outcomes(
            rows.take(bad), "failed", [w.reason for w in why], [str(w) for w in why], [w.error_type for w in why]
        )
        return Result(ok, lost)

    def _structures(self, rows: pa.Table) -> dict[int, dict[str, Any]]:
        structure = self.stage.structured
        assert structure is not None
        found = {}
        for number, fields in enumerate(fields_of(rows)):
            try:
                found[number] = structure.of(fields)
            except RequestError:
                continue  # failed already
        return found


class Gate:
    """Many threads together, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._owner: int | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        me = threading.get_ident()
        if self._owner == me:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._owner is None and not self._inside)
            self._owner = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._owner = None
                self._changed.notify_all()


def _arrive(arrived: queue.SimpleQueue[Any], number: int, done: Future[dict[str, Any]]) -> None:
    arrived.put((number, done))


def _digest(request: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _beginning(request: dict[str, Any]) -> str:
    if "prompt" in request:
        return str(request["prompt"])
    return "\n".join(str(message.get("content")) for message in request["messages"])
