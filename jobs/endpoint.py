"""Models online: vLLM's OpenAI server over the engine that batches, in deployments of Ray Serve.

`batchmill serve FILE` runs it. `serve deploy` takes the configuration that `batchmill serve FILE --config` prints: it
imports `jobs.endpoint:build`. One model is its own ingress; before several stands a router.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import click

from jobs.endpoint_config import Endpoint, ServedModel
from jobs.endpoint_http import MODELS, POSTS, Defaults, Exchange, Gate, Limit, error_body
from stages.core.errors import ConfigError, RunError

APPLICATION = "batchmill"
IMPORT_PATH = "jobs.endpoint:build"
HEADROOM = 64
"""Requests for health and metrics that a full replica still answers."""


class Replica:
    """One engine behind vLLM's application."""

    async def __init__(self, model: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        from starlette.exceptions import HTTPException

        from stages.engines.vllm_engine import application

        self.client: Any = None
        self.model = ServedModel.model_validate(model)
        spec = self.model.engine
        wanted: dict[str, Any] = {"scheduling_policy": "priority"}
        if self.model.max_running:
            wanted["max_num_seqs"] = self.model.max_running
        app, self.client = await application(spec, wanted)
        app.add_route(f"{MODELS}/{{name:path}}", one_model)
        app.add_exception_handler(HTTPException, not_served)
        defaults = {route: spec.sampling.body(route) for route in ("/v1/chat/completions", "/v1/completions")}
        most = self.model.running + self.model.max_queued
        self.asgi = Limit(Defaults(app, defaults), most, lambda: not self.client.errored)

    def check_health(self) -> None:
        """Ray Serve asks; a replica that raises is replaced. One that is busy is well."""
        if self.client.errored:
            raise RuntimeError("the engine is dead")

    async def respond(self, method: str, path: str, headers: list[Any], body: bytes) -> AsyncIterator[Any]:
        """For the router: the status and headers of a response, then its parts."""
        sent: asyncio.Queue[Any] = asyncio.Queue()
        exchange = Exchange(body, asyncio.Event().wait, sent.put)  # type: ignore[arg-type]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
        }
        scope |= {"raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http"}
        scope |= {"headers": headers, "client": None, "server": None, "state": {}}
        task = asyncio.ensure_future(self.asgi(scope, exchange.receive, exchange.send))
        task.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.start":
                    yield message["status"], list(message["headers"])
                elif message.get("body"):
                    yield message["body"]
        finally:
            exchange.gone.set()

    def __del__(self) -> None:
        if self.client is not None:
            self.client.shutdown()


class Ingress(Replica):
    """A replica of the one model of an address, which answers without a router in between."""

    async def __init__(self, model: dict[str, Any], gate: dict[str, Any]) -> None:  # type: ignore[misc]
        await super().__init__(model)
        self.gate = gate

    async def __serve_build_asgi_app__(self) -> Any:
        return Gate(self.asgi, **self.gate)


async def not_served(request: Any, error: Any) -> Any:
    """What the application has no route for: its engine generates or embeds, not both."""
    from starlette.responses import Response

    message = f"{request.url.path}: this model does not do that ({error.detail})"
    body = error_body(message, "invalid_request_error", error.status_code)
    return Response(body, error.status_code, media_type="application/json")


async def one_model(request: Any) -> Any:
    """`/v1/models/{name}`, which vLLM's server lacks."""
    from starlette.responses import JSONResponse, Response

    name = request.path_params["name"]
    listed = await request.app.state.openai_serving_models.show_available_models()
    found = next((card for card in listed.data if card.id == name), None)
    if found is not None:
        return JSONResponse(found.model_dump())
    return Response(unknown_model(name), 404, media_type="application/json")


def unknown_model(name: object) -> bytes:
    return error_body(f"The model `{str(name)[:200]}` does not exist.", "NotFoundError", 404, "model")


class Router:
    """Several models at one address: a request goes to the model that it names."""

    def __init__(self, handles: dict[str, Any], gate: dict[str, Any]) -> None:
        self.handles = {name: handle.options(stream=True) for name, handle in handles.items()}
        self.gate = gate

    async def __serve_build_asgi_app__(self) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Route

        routes = [Route(path, self.post, methods=["POST"]) for path in POSTS]
        routes += [Route(MODELS, self.models), Route(f"{MODELS}/{{name:path}}", self.one_model)]
        routes += [Route("/health", self.health), Route("/metrics", self.metrics), Route("/version", self.version)]
        return Gate(Starlette(routes=routes), **self.gate)

    async def post(self, request: Any) -> Any:
        from ray.exceptions import RayError
        from starlette.responses import Response, StreamingResponse

        body = await request.body()
        try:
            name = json.loads(body)["model"]
        except (ValueError, KeyError, TypeError):
            message = "a request is a JSON object whose `model` names one of several models"
            return Response(error_body(message, "BadRequestError", 400, "model"), 400, media_type="application/json")
        handle = self.handles.get(name) if isinstance(name, str) else None
        if handle is None:
            return Response(unknown_model(name), 404, media_type="application/json")
        parts = handle.respond.remote("POST", request.url.path, request.scope["headers"], body)
        try:
            status, headers = await anext(parts)
        except RayError:
            lost = error_body("the engine was lost", "server_error", "engine_dead")
            return Response(lost, 503, {"retry-after": "1"}, media_type="application/json")

        async def content() -> AsyncIterator[bytes]:
            try:
                async for part in parts:
                    yield part
            except RayError:
                yield b"data: " + error_body("the engine was lost", "server_error", "engine_dead") + b"\n\n"
                yield b"data: [DONE]\n\n"
            finally:
                parts.cancel()

        response = StreamingResponse(content(), status)
        response.raw_headers = [(bytes(key), bytes(value)) for key, value in headers]
        return response

    async def models(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": await self._cards()})

    async def one_model(self, request: Any) -> Any:
        from starlette.responses import JSONResponse, Response

        name = request.path_params["name"]
        card = next((card for card in await self._cards() if card["id"] == name), None)
        if card is None:
            return Response(unknown_model(name), 404, media_type="application/json")
        return JSONResponse(card)

    async def health(self, request: Any) -> Any:
        from starlette.responses import Response

        found = await asyncio.gather(*(self._get(handle, "/health") for handle in self._each()), return_exceptions=True)
        well = all(not isinstance(answer, BaseException) and answer[0] == 200 for answer in found)
        return Response(status_code=200 if well else 503)

    async def metrics(self, request: Any) -> Any:
        from prometheus_client import CONTENT_TYPE_LATEST
        from starlette.responses import Response

        found = await asyncio.gather(*(self._get(handle, "/metrics") for handle in self._each()))
        return Response(joined_metrics([body.decode() for _, body in found]), media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Any) -> Any:
        from starlette.responses import Response

        _, body = await self._get(next(iter(self._each())), "/version")
        return Response(body, media_type="application/json")

    def _each(self) -> list[Any]:
        """A handle for each model; adapters share one with their model."""
        return list({id(handle): handle for handle in self.handles.values()}.values())

    async def _cards(self) -> list[dict[str, Any]]:
        found = await asyncio.gather(*(self._get(handle, MODELS) for handle in self._each()))
        return [card for _, body in found for card in json.loads(body)["data"]]

    async def _get(self, handle: Any, path: str) -> tuple[int, bytes]:
        parts = handle.respond.remote("GET", path, [], b"")
        status, _ = await anext(parts)
        return status, b"".join([part async for part in parts])


def joined_metrics(texts: list[str]) -> bytes:
    """Several pages of metrics as one, in which each family is described once."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    families: dict[str, Any] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            known = families.setdefault(family.name, family)
            if known is not family:
                known.samples.extend(sample for sample in family.samples if sample not in known.samples)

    class Pages:
        def collect(self) -> Any:
            return iter(families.values())

    registry = CollectorRegistry()
    registry.register(Pages())
    return generate_latest(registry)


def build(args: dict[str, Any]) -> Any:
    """The Serve application of an endpoint, declared as JSON values."""
    from ray import serve

    endpoint = Endpoint.declared(args)
    digests = endpoint.api_keys.digests() if endpoint.api_keys else ()
    gate = {"digests": digests, "max_bytes": int(endpoint.max_request_bytes), "timeout_s": endpoint.request_timeout_s}
    if len(endpoint.models) == 1:
        (model,) = endpoint.models
        ingress = serve.deployment(serve.ingress()(Ingress))
        return ingress.options(name="model-0", **options(model)).bind(model.model_dump(mode="json"), gate)
    bound: dict[str, Any] = {}
    for number, model in enumerate(endpoint.models):
        deployment = serve.deployment(Replica).options(name=f"model-{number}", **options(model))
        node = deployment.bind(model.model_dump(mode="json"))
        bound |= dict.fromkeys((model.engine.served_name, *model.engine.adapters), node)
    most = sum(model.running + model.max_queued for model in endpoint.models) + HEADROOM
    router = serve.deployment(serve.ingress()(Router))
    return router.options(name="router", max_ongoing_requests=most, ray_actor_options={"num_cpus": 0}).bind(bound, gate)


def options(model: ServedModel) -> dict[str, Any]:
    """What Ray Serve is told of a model's deployment."""
    least, most = model.bounds
    found: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": model.engine.num_cpus, "num_gpus": model.engine.num_gpus},
        "max_ongoing_requests": model.running + model.max_queued + HEADROOM,
        "health_check_period_s": 5,
        "health_check_timeout_s": 60,
        "max_constructor_retry_count": 1,
    }
    if least == most:
        return found | {"num_replicas": least}
    scaling = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": model.target_ongoing_requests}
    return found | {"autoscaling_config": scaling}


def serve_config(endpoint: Endpoint) -> dict[str, Any]:
    """What `serve deploy` takes."""
    args = endpoint.model_dump(mode="json", exclude_defaults=True)
    application = {"name": APPLICATION, "route_prefix": "/", "import_path": IMPORT_PATH, "args": args}
    return {"http_options": {"host": endpoint.host, "port": endpoint.port}, "applications": [application]}


def serve_until_stopped(endpoint: Endpoint) -> None:
    """Serve on this machine or the cluster of RAY_ADDRESS, until Ctrl-C or SIGTERM. Raises ConfigError, RunError."""
    from pipelines import cluster

    if not cluster.joins_cluster():
        _check_port(endpoint)
    cluster.connect()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # not before Ray has put a handler of its own
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    from ray import serve

    try:
        serve.start(http_options={"host": endpoint.host, "port": endpoint.port})
        _run(endpoint)
        names = ", ".join(model.engine.served_name for model in endpoint.models)
        click.echo(f"serving {names} at http://{endpoint.host}:{endpoint.port}/v1 (Ctrl-C stops)")
        signal.pause()
    except KeyboardInterrupt:
        click.echo("stopping")
    finally:
        # What others serve on a cluster goes on.
        if cluster.joins_cluster():
            serve.delete(APPLICATION)
        else:
            serve.shutdown()


def _run(endpoint: Endpoint) -> None:
    from ray import serve

    try:
        serve.run(build(endpoint.model_dump(mode="json")), name=APPLICATION, route_prefix="/", logging_config=None)
    except RuntimeError as error:
        raise RunError(f"the endpoint does not start: {_cause(str(error))}") from error


def _cause(message: str) -> str:
    """The line of Serve's message that says what happened: the last one of a traceback."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    found = [line for line in lines if "Error" in line.split(":")[0] and "RayTaskError" not in line]
    return found[-1] if found else (lines[-1] if lines else message)


def _check_port(endpoint: Endpoint) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((endpoint.host, endpoint.port))
        except OSError as error:
            raise ConfigError("port", f"cannot listen at {endpoint.host}:{endpoint.port}: {error.strerror}") from error
