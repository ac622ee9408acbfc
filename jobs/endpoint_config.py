"""What `batchmill serve` is told: models, where to listen, who may ask, and how much."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, model_validator

from stages.core.errors import ConfigError, nearest
from stages.engines.spec import EngineSpec


class ApiKeys(BaseModel):
    """Where the keys are: one to a line, or separated by commas."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str | None = Field(None, description="an environment variable")
    file: str | None = None

    @model_validator(mode="after")
    def _one(self) -> ApiKeys:
        if (self.env is None) == (self.file is None):
            raise ValueError("give one of env, file")
        return self

    def digests(self) -> tuple[str, ...]:
        """SHA-256 of each key, so that no key travels. Raises ConfigError where there is none."""
        if self.env is not None:
            field, text = "api_keys.env", os.environ.get(self.env, "")
            missing = f"the environment has no variable {self.env} that holds a key"
        else:
            field, path = "api_keys.file", Path(str(self.file)).expanduser()
            missing = f"{path} holds no key"
            try:
                text = path.read_text(encoding="utf-8")
            except OSError as error:
                raise ConfigError(field, f"cannot read {path}: {error.strerror}") from error
        keys = [key.strip() for key in text.replace(",", "\n").splitlines() if key.strip()]
        if not keys:
            raise ConfigError(field, missing)
        return tuple(hashlib.sha256(key.encode()).hexdigest() for key in keys)


class ServedModel(BaseModel):
    """A model online. A replica is an engine of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: EngineSpec
    replicas: int | tuple[int, int] = Field(1, description="a number, or the fewest and the most")
    target_ongoing_requests: float = Field(
        32, gt=0, description="requests in a replica above which one more is started"
    )
    max_running: int | None = Field(
        None, ge=1, description="requests that an engine works on at once; null: vLLM's own"
    )
    max_queued: int = Field(256, ge=0, description="requests beyond those that wait in a replica; more get 503")

    @model_validator(mode="after")
    def _ordered(self) -> ServedModel:
        least, most = self.bounds
        if least < 1 or most < least:
            raise ValueError("replicas: a number from 1 on, or two of them with the smaller one first")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        return self.replicas if isinstance(self.replicas, tuple) else (self.replicas, self.replicas)

    @property
    def running(self) -> int:
        return self.max_running or int(self.engine.engine_args.get("max_num_seqs", 256))


class Endpoint(BaseModel):
    """The models of one address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[ServedModel, ...] = Field(min_length=1)
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    api_keys: ApiKeys | None = None
    max_request_bytes: ByteSize = Field(ByteSize(4 * 2**20), gt=0)
    request_timeout_s: float = Field(600.0, gt=0, description="seconds from a request to the end of its answer")

    @model_validator(mode="after")
    def _names_differ(self) -> Endpoint:
        names = [name for model in self.models for name in (model.engine.served_name, *model.engine.adapters)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"several models are called {', '.join(twice)}: give each engine a `name`")
        return self

    @classmethod
    def from_yaml(cls, path: Path, overrides: dict[str, Any] | None = None) -> Endpoint:
        """The endpoint that a file declares: `models: [{engine: ...}]`, or one `engine: ...`, or a pipeline, whose
        generating stages' engines are served. Raises ConfigError."""
        try:
            declared = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError("FILE", f"cannot read {path}: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise ConfigError("FILE", f"{path} is no YAML: {error}") from error
        if not isinstance(declared, dict):
            raise ConfigError("FILE", f"{path} holds no mapping")
        if "stages" in declared:
            declared = {"models": _engines_of_pipeline(path)}
        elif "engine" in declared:
            declared = {key: value for key, value in declared.items() if key in cls.model_fields} | {
                "models": [{key: value for key, value in declared.items() if key not in cls.model_fields}]
            }
        return cls.declared(declared | (overrides or {}))

    @classmethod
    def declared(cls, values: dict[str, Any]) -> Endpoint:
        """Raises ConfigError that names the field."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = [str(part) for part in first["loc"] if not str(part).startswith("function-")]
            hint = ""
            if first["type"] == "extra_forbidden":
                owner: type[BaseModel] = cls
                if "engine" in where[:-1]:
                    owner = EngineSpec
                elif len(where) > 1:
                    owner = ServedModel
                hint = nearest(where[-1], owner.model_fields)
            message = first["msg"].removeprefix("Value error, ")
            raise ConfigError(".".join(where) or "FILE", message + hint) from error

    def check(self, insecure: bool = False) -> None:
        """Refuse what cannot work, before anything is loaded. Raises ConfigError."""
        if self.api_keys:
            self.api_keys.digests()
        elif not insecure and not _is_loopback(self.host):
            raise ConfigError(
                "api_keys", f"{self.host} can be reached from elsewhere: set api_keys, or pass --insecure"
            )
        for number, model in enumerate(self.models):
            model.engine.check(f"models.{number}.engine")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _engines_of_pipeline(path: Path) -> list[dict[str, Any]]:
    from pipelines.pipeline import Pipeline
    from stages.generate import Generate

    specs = [stage.engine for stage in Pipeline.from_yaml(path).stages if isinstance(stage, Generate)]
    if not specs:
        raise ConfigError("stages", f"{path} has no generate stage whose engine could be served")
    return [{"engine": spec.model_dump()} for spec in dict.fromkeys(specs)]
