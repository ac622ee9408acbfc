"""Responses to columns, and what a structured answer is worth."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Columns:
    """The columns that answers become, all of them prefixed by `output`. With `several` answers to a row (n > 1), text,
    finish_reason and what is parsed are lists."""

    output: str
    several: bool = False
    structured: bool = False
    logprobs: bool = False
    tools: bool = False

    def fields(self) -> list[pa.Field]:
        text = pa.list_(pa.string()) if self.several else pa.string()
        found = [
            (self.output, text),
            (f"{self.output}_finish_reason", text),
            (f"{self.output}_prompt_tokens", pa.int32()),
            (f"{self.output}_output_tokens", pa.int32()),
        ]
        if self.structured:
            # JSON, or null; and then what is wrong with the answer.
            found += [(f"{self.output}_parsed", text), (f"{self.output}_parse_error", text)]
        if self.logprobs:
            found.append((f"{self.output}_logprobs", text))
        if self.tools:
            found.append((f"{self.output}_tool_calls", text))
        return [pa.field(name, kind) for name, kind in found]

    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields())

    def of(self, response: Mapping[str, Any], structure: Mapping[str, Any]) -> list[Any]:
        """The values of one response, in the order of `fields`."""
        choices = sorted(response["choices"], key=lambda choice: choice["index"])
        texts = [text_of(choice) for choice in choices]
        reasons = [choice["finish_reason"] for choice in choices]
        usage = response.get("usage") or {}
        values = [
            self._each(texts),
            self._each(reasons),
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
        ]
        if self.structured:
            judged = [judge(text, why, structure) for text, why in zip(texts, reasons, strict=True)]
            values += [self._each([parsed for parsed, _ in judged]), self._each([error for _, error in judged])]
        if self.logprobs:
            values.append(self._each([_json(choice.get("logprobs")) for choice in choices]))
        if self.tools:
            values.append(self._each([_json(choice.get("message", {}).get("tool_calls")) for choice in choices]))
        return values

    def _each(self, values: Sequence[Any]) -> Any:
        return list(values) if self.several else values[0]


def text_of(choice: Mapping[str, Any]) -> str:
    return (choice["message"].get("content") if "message" in choice else choice.get("text")) or ""


def judge(text: str, finish_reason: str | None, structure: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """What a structured answer holds, as JSON, or what is wrong with it."""
    import jsonschema

    if finish_reason == "length":
        return None, "cut off by max_tokens"
    kind, wanted = next(iter(structure.items()))
    if kind == "schema":
        try:
            value = json.loads(text)
            jsonschema.validate(value, wanted)
        except ValueError as error:
            return None, f"not JSON: {error}"
        except jsonschema.ValidationError as error:
            return None, f"does not fit the schema: {error.message}"
        return json.dumps(value, ensure_ascii=False), None
    if kind == "choice" and text not in wanted:
        return None, f"is none of {list(wanted)}"
    if kind == "regex" and re.fullmatch(wanted, text) is None:
        return None, "does not match the regular expression"
    return json.dumps(text, ensure_ascii=False), None


def _json(value: Any) -> str | None:
    return None if not value else json.dumps(value, ensure_ascii=False)
