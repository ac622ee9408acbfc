"""Rows to requests: a prompt, a conversation or a template, with what the row itself asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import jinja2
import jinja2.sandbox
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from stages.core.errors import nearest
from stages.engines.spec import Route, Sampling
from stages.engines.text import RequestError

ENVIRONMENT = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
STRUCTURES = ("schema", "regex", "choice", "grammar")


class Template(BaseModel):
    """Jinja2 over the row's columns and the fields of its metadata."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str | None = None
    user: str

    @field_validator("system", "user")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            return value if value is None else (ENVIRONMENT.from_string(value), value)[1]
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"is no Jinja2 template: {error.message} (line {error.lineno})") from None

    @cached_property
    def _compiled(self) -> list[tuple[str, jinja2.Template]]:
        parts = [("system", self.system), ("user", self.user)]
        return [(role, ENVIRONMENT.from_string(text)) for role, text in parts if text is not None]

    def messages(self, fields: Mapping[str, Any]) -> list[dict[str, str]]:
        return [{"role": role, "content": template.render(fields)} for role, template in self._compiled]


class Structure(BaseModel):
    """What an answer must look like: one of a JSON schema, a regular expression, a choice, a grammar (EBNF), or the
    name of a column that holds such a mapping, for each row its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    column: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Structure:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError(f"give one of {', '.join(STRUCTURES)}, column")
        return self

    def of(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The one structure of a row, such as `{"regex": "..."}`."""
        if self.column is None:
            return self.model_dump(mode="json", exclude_none=True, by_alias=True)
        given = value_of(fields, self.column)
        if not (isinstance(given, dict) and len(given) == 1 and next(iter(given)) in STRUCTURES):
            raise RequestError("bad_request", f"'{self.column}' holds no mapping of one of {STRUCTURES}", "ValueError")
        return given


def body(structure: dict[str, Any]) -> dict[str, Any]:
    """The field of a request that asks for `structure`."""
    kind, value = next(iter(structure.items()))
    if kind == "schema":  # the one kind that OpenAI's protocol knows
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": value}}}
    return {"structured_outputs": {kind: value}}


class Prompting(BaseModel):
    """How a row becomes a request: one of `prompt`, `messages` and `template`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: str | None = None
    messages: str | None = None
    template: Template | None = None
    sampling: Sampling = Sampling()
    sampling_column: str | None = None
    structured: Structure | None = None
    adapter_column: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Literal["auto", "none", "required"] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    add_special_tokens: bool | None = None

    @property
    def route(self) -> Route:
        return "/v1/completions" if self.prompt is not None else "/v1/chat/completions"

    def request(self, fields: Mapping[str, Any], defaults: Sampling, bos: str | None = None) -> dict[str, Any]:
        """The body of the request that a row stands for. Raises RequestError where it stands for none."""
        request = self._asked(fields, bos)
        sampling = self.sampling.over(defaults)
        if self.sampling_column:
            sampling = _sampling(value_of(fields, self.sampling_column), self.sampling_column).over(sampling)
        request |= sampling.body(self.route)
        if self.structured:
            request |= body(self.structured.of(fields))
        if self.adapter_column and (adapter := value_of(fields, self.adapter_column)):
            request["model"] = str(adapter)
        if self.tools:
            request["tools"] = list(self.tools)
            if self.tool_choice:
                request["tool_choice"] = self.tool_choice
        if self.chat_template_kwargs and self.route == "/v1/chat/completions":
            request["chat_template_kwargs"] = self.chat_template_kwargs
        return request

    def _asked(self, fields: Mapping[str, Any], bos: str | None) -> dict[str, Any]:
        if self.template:
            try:
                return {"messages": self.template.messages(fields)}
            except jinja2.TemplateError as error:
                raise RequestError(
                    "bad_template", f"the template fails on this row: {error}", type(error).__name__
                ) from error
        if self.messages:
            return {"messages": _conversation(value_of(fields, self.messages), self.messages)}
        assert self.prompt is not None
        prompt = value_of(fields, self.prompt)
        if not isinstance(prompt, str) or not prompt:
            raise RequestError("empty_prompt", f"'{self.prompt}' holds no text", "ValueError")
        special = self.add_special_tokens
        if special is None and bos and prompt.startswith(bos):
            special = False  # the text brings its own first token: a second one would change the answer
        return {"prompt": prompt} | ({} if special is None else {"add_special_tokens": special})


def fields_of(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Each row's columns, and the fields of its metadata where no column has their name."""
    names = [name for name in rows.column_names if name != "content"]
    for row in rows.select(names).to_pylist():
        metadata = row.get("metadata")
        known = json.loads(metadata) if isinstance(metadata, str) and metadata else {}
        yield (known if isinstance(known, dict) else {}) | row


def value_of(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise RequestError("missing_column", f"the row has no '{name}'{nearest(name, fields)}", "KeyError")
    value = fields[name]
    # Lists and mappings have travelled as JSON where a column can only hold text.
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _conversation(value: Any, column: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise RequestError("empty_prompt", f"'{column}' holds no messages", "ValueError")
    for message in value:
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise RequestError(
                "bad_request", f"'{column}' holds a message without a role: {message!r:.200}", "ValueError"
            )
    # A struct column spells out the fields that a message does not have.
    return [{key: item for key, item in message.items() if item is not None} for message in value]


def _sampling(value: Any, column: str) -> Sampling:
    if value is None:
        return Sampling()
    try:
        return Sampling.model_validate({k: v for k, v in dict(value).items() if v is not None})
    except (ValidationError, TypeError, ValueError) as error:
        problem = (
            f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}" if isinstance(error, ValidationError) else error
        )
        raise RequestError(
            "bad_request", f"'{column}' holds no sampling parameters: {problem}", "ValueError"
        ) from error


Shorten = Callable[[dict[str, Any]], dict[str, Any]]


def shortener(how: Literal["truncate_left", "truncate_middle"], tokenizer: Any, limit: int) -> Shorten:
    """A function that cuts the longest text of a request, at its start or in its middle, until the prompt has room
    beside the answer in `limit` tokens. The chat template and all other messages stay as they are."""

    def tokens(request: dict[str, Any]) -> int:
        if "prompt" in request:
            return len(
                tokenizer(request["prompt"], add_special_tokens=request.get("add_special_tokens", True)).input_ids
            )
        extra = request.get("chat_template_kwargs", {})
        ids = tokenizer.apply_chat_template(
            request["messages"], add_generation_prompt=True, tokenize=True, return_dict=True, **extra
        )
        return len(ids["input_ids"])

    def cut(text: str, excess: int) -> str:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = encoded["offset_mapping"]
        keep = max(len(offsets) - excess, 0)
        if how == "truncate_left":
            return text[offsets[-keep][0] :] if keep else ""
        head = keep // 2
        tail = keep - head
        start = offsets[head][0] if head < len(offsets) else len(text)
        return text[:start] + (text[offsets[-tail][0] :] if tail else "")

    def shorten(request: dict[str, Any]) -> dict[str, Any]:
        room = limit - (request.get("max_tokens") or 1)
        for _ in range(4):  # tokens at a seam may fall out otherwise
            excess = tokens(request) - room
            if excess <= 0:
                break
            if "prompt" in request:
                request = request | {"prompt": cut(request["prompt"], excess)}
                continue
            texts = [
                (len(m["content"]), i) for i, m in enumerate(request["messages"]) if isinstance(m.get("content"), str)
            ]
            if not texts:
                break
            _, longest = max(texts)
            messages = [dict(message) for message in request["messages"]]
            messages[longest]["content"] = cut(messages[longest]["content"], excess)
            request = request | {"messages": messages}
        return request

    return shorten
