"""Pipelines as YAML: read, changed from the command line, and written back."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipelines.pipeline import Pipeline
from stages.core.errors import ConfigError, nearest
from stages.core.registry import find
from stages.core.stage import Stage

TOP = ("name", "stages", "max_failed")
SECRET_FIELDS = ("storage_options", "headers", "passwords")
ADDRESS = re.compile("endpoint|region|url|host", re.IGNORECASE)


def load(path: Path, overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline in a file. Raises ConfigError that names the field and the nearest valid name."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(str(path), "there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(str(path), f"is not valid YAML: {error}") from error
    return build(config, overrides)


def build(config: Any, overrides: Sequence[str] = ()) -> Pipeline:
    """The pipeline that a parsed YAML document describes."""
    if not isinstance(config, dict):
        raise ConfigError("pipeline", "a pipeline file is a mapping with `name` and `stages`")
    _no_unknown(config, TOP, "")
    if not isinstance(config.get("stages"), list):
        raise ConfigError("stages", "must be a list, such as `- read: {uri: ./docs}`")
    steps = [_step(number, entry) for number, entry in enumerate(config["stages"], 1)]
    top = {key: value for key, value in config.items() if key != "stages"}
    for override in overrides:
        _override(override, top, steps)
    stages = [make(name, fields) for name, fields in steps]
    return Pipeline(top.get("name") or "", stages, **({"max_failed": top["max_failed"]} if "max_failed" in top else {}))


def _step(number: int, entry: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ConfigError(f"stages[{number}]", "each stage is one name with its fields, such as `clean: {}`")
    name, fields = next(iter(entry.items()))
    if fields is not None and not isinstance(fields, dict):
        raise ConfigError(str(name), f"the fields must be a mapping, not {fields!r}")
    return str(name), copy.deepcopy(fields or {})  # its own, where YAML's anchors share one


def make(name: str, fields: dict[str, Any]) -> Stage:
    """The stage called `name` with `fields`. Raises ConfigError for the first field that is wrong."""
    kind = find(name)
    label = str(fields.get("name") or name)
    _no_unknown(fields, kind.model_fields, f"{label}.")
    try:
        return kind(**fields)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"]
        if problem["type"] == "missing":
            message = "must be given"
        elif "input" in problem and problem["type"] != "value_error":
            message = f"{message[0].lower()}{message[1:]}, not {problem['input']!r}"
        raise ConfigError(f"{label}.{place}" if place else label, message.removeprefix("Value error, ")) from None


def _no_unknown(given: dict[str, Any], known: Any, prefix: str) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{prefix}{key}", f"there is no such field{nearest(str(key), known)}")


def _override(text: str, top: dict[str, Any], steps: list[tuple[str, dict[str, Any]]]) -> None:
    """Apply one `stage.field=value` (or `name=...`, `max_failed=...`) in place."""
    place, equals, raw = text.partition("=")
    if not equals:
        raise ConfigError(text, "write it as stage.field=value")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ConfigError(place, f"{raw!r} is not valid YAML: {error}") from error
    stage, _, field = place.rpartition(".") if place.count(".") <= 1 else _longest(place, steps)
    if not stage:
        _no_unknown({place: value}, [key for key in TOP if key != "stages"], "")
        top[place] = value
        return
    matches = [fields for name, fields in steps if (fields.get("name") or name) == stage]
    if not matches:
        labels = [str(fields.get("name") or name) for name, fields in steps]
        raise ConfigError(place, f"the pipeline has no stage '{stage}'{nearest(stage, labels)}")
    if len(matches) > 1:
        raise ConfigError(place, f"{len(matches)} stages are called '{stage}': give them a `name` each")
    target = matches[0]
    *parents, last = field.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise ConfigError(place, f"'{parent}' is no mapping")
    target[last] = value


def _longest(place: str, steps: list[tuple[str, dict[str, Any]]]) -> tuple[str, str, str]:
    """Part `place` after the stage's name, which may be a dotted path itself."""
    labels = sorted((str(fields.get("name") or name) for name, fields in steps), key=len, reverse=True)
    for label in labels:
        if place.startswith(f"{label}."):
            return label, ".", place[len(label) + 1 :]
    stage, dot, field = place.partition(".")
    return stage, dot, field


def dump(pipeline: Pipeline, *, resolved: bool = False) -> str:
    """YAML that `load` reads back to the same pipeline, but for credentials, which are masked.

    With `resolved`, fields at their defaults are spelt out too: defaults may be others in another version.
    """
    stages = [{stage.kind(): settings(stage, resolved)} for stage in pipeline.stages]
    config = {"name": pipeline.name, "max_failed": pipeline.max_failed, "stages": stages}
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)


def settings(stage: Stage, resolved: bool = False) -> dict[str, Any]:
    """The fields of a stage, all or those that are not at their defaults, credentials masked."""
    fields: dict[str, Any] = _masked(stage.model_dump(mode="json", exclude_defaults=not resolved))
    return fields


def _masked(value: Any, secret: bool = False) -> Any:
    """`value` with everything in storage options and headers hidden that is not plainly an address."""
    if isinstance(value, dict):
        return {
            name: item
            if isinstance(item, str) and ADDRESS.search(str(name))
            else _masked(item, secret or name in SECRET_FIELDS)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_masked(item, secret) for item in value]
    return "***" if secret else value
