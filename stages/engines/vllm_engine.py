"""vLLM: the one module that imports it.

The engine is an AsyncLLM, and requests go through the handlers of vLLM's own OpenAI server, which render, sample and
answer: so a batch gives what an endpoint gives. Handlers ask for final outputs only, unless a request streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, NamedTuple

from stages.core.errors import ConfigError
from stages.engines.spec import EngineSpec, Route
from stages.engines.text import EngineDead, RequestError

PARENT = "BATCHMILL_ENGINE_PARENT"
"""The environment variable that tells the engine's processes whose they are."""

REASONS = {400: "bad_request", 404: "not_found", 422: "bad_request", 501: "not_supported"}
OVERLONG = ("maximum context length", "max_model_len", "longer than the maximum model length")


def die_with_parent() -> None:
    """vLLM calls this as a plugin in each of its processes. They would outlive an actor that is killed."""
    parent = os.environ.get(PARENT)
    if parent and int(parent) != os.getpid():
        threading.Thread(target=_follow, args=(int(parent),), daemon=True, name="follow-parent").start()


def _follow(parent: int) -> None:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(parent).wait()
    os.kill(os.getpid(), signal.SIGKILL)


def arguments(spec: EngineSpec, defaults: dict[str, Any], field: str = "engine") -> Any:
    """The namespace that vLLM's own parser makes of a spec. Raises ConfigError for what the parser refuses."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> Any:
            raise ConfigError(f"{field}.engine_args", message)

    return make_arg_parser(Parser()).parse_args(command_line(spec, defaults))


def command_line(spec: EngineSpec, defaults: dict[str, Any]) -> list[str]:
    """A spec as arguments of vLLM's server. What the spec's author gave goes last and wins over `defaults`."""
    given: dict[str, Any] = defaults | {
        "model": spec.model,
        "served_model_name": spec.served_name,
        "runner": "pooling" if spec.task == "embed" else "generate",
        "dtype": spec.dtype,
        "tensor_parallel_size": spec.tensor_parallel_size,
        "pipeline_parallel_size": spec.pipeline_parallel_size,
        "revision": spec.revision,
        "kv_cache_memory_bytes": spec.kv_cache_bytes,
        "trust_remote_code": spec.trust_remote_code or None,
    }
    if spec.on_cpu:
        given["enforce_eager"] = True  # there are no graphs to capture, and compiling takes minutes
    elif spec.num_gpus < 1:
        given["gpu_memory_utilization"] = round(0.9 * spec.num_gpus, 3)  # the others have their share
    if spec.adapters:
        given |= {"enable_lora": True, "lora_modules": [f"{name}={path}" for name, path in spec.adapters.items()]}
    words: list[str] = []
    for name, value in (given | {key.replace("-", "_"): value for key, value in spec.engine_args.items()}).items():
        option = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list):
            words += [f"--{option}", *map(str, value)]
        else:
            words += [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


class Loaded(NamedTuple):
    client: Any
    """The AsyncLLM."""
    namespace: Any
    tasks: tuple[str, ...]

    async def give(self, state: Any) -> None:
        """Put the handlers of vLLM's server into `state`."""
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state

        await init_app_state(self.client, state, self.namespace, self.tasks)
        state.server = SimpleNamespace()  # handlers tell the server when the engine is dead


async def load(spec: EngineSpec, defaults: dict[str, Any]) -> Loaded:
    """Load the model, in the event loop that runs. Raises ConfigError for arguments that vLLM refuses,
    RuntimeError where the model cannot be loaded."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    os.environ[PARENT] = str(os.getpid())
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if spec.on_cpu:
        # The first request for logprobs would wait a quarter of a minute for a compiler.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if spec.on_cpu and spec.threads:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        os.environ["OMP_NUM_THREADS"] = str(spec.threads)
    namespace = arguments(spec, defaults)
    try:
        client = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(namespace))
    except (ValueError, OSError) as error:  # pydantic's errors are ValueErrors
        raise ConfigError("engine", f"vLLM refuses it: {error}") from error
    return Loaded(client, namespace, await client.get_supported_tasks())


async def application(spec: EngineSpec, defaults: dict[str, Any]) -> tuple[Any, Any]:
    """vLLM's OpenAI server as an ASGI application, and the engine's client, in the event loop that runs."""
    from vllm.entrypoints.launchers.app import build_app

    loaded = await load(spec, {"disable_fastapi_docs": True, **defaults})
    app = build_app(loaded.namespace, loaded.tasks, loaded.client.model_config)
    await loaded.give(app.state)
    app.middleware_stack = None  # built already, and to be built again with what is added to the application
    return app, loaded.client


class VllmEngine:
    """A TextEngine in this process, with an event loop in a thread of its own. Loading takes the better part of a
    minute. Raises what `load` raises."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="vllm").start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def _start(self) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        loaded = await load(self.spec, {"disable_log_stats": True})
        self.client = loaded.client
        self.state = SimpleNamespace()
        await loaded.give(self.state)
        self.max_model_len = int(self.client.model_config.max_model_len)
        self.tokenizer = self.client.renderer.tokenizer
        self._requests = {
            "/v1/chat/completions": ChatCompletionRequest,
            "/v1/completions": CompletionRequest,
        }

    def submit(self, route: Route, body: dict[str, Any]) -> Future[dict[str, Any]]:
        return asyncio.run_coroutine_threadsafe(self._answer(route, body), self._loop)

    async def _answer(self, route: Route, body: dict[str, Any]) -> dict[str, Any]:
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            request = self._requests[route](**({"model": self.spec.served_name} | body))
            if route == "/v1/chat/completions":
                answer = await self.state.openai_serving_chat.create_chat_completion(request)
            else:
                answer = await self.state.openai_serving_completion.create_completion(request)
        except EngineDeadError as error:
            raise EngineDead(str(error)) from error
        except Exception as error:
            if self.client.errored:
                raise EngineDead(str(error)) from error
            answer = create_error_response(error)
        if isinstance(answer, ErrorResponse):
            # A dying engine answers what was under way as an error of the server.
            if self.client.errored:
                raise EngineDead(answer.error.message)
            raise refusal(answer.error)
        response: dict[str, Any] = answer.model_dump(mode="json")
        return response

    def close(self) -> None:
        async def shut_down() -> None:
            self.client.shutdown()

        asyncio.run_coroutine_threadsafe(shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)


def refusal(error: Any) -> RequestError:
    """An error of OpenAI's protocol as the outcome of a row."""
    reason = REASONS.get(error.code, "engine_error")
    if any(words in error.message for words in OVERLONG):
        reason = "prompt_too_long"
    return RequestError(reason, error.message, error.type)
