"""What stands before an application of OpenAI's protocol: keys, sizes, time, and how many may ask at once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
OPEN = ("/health", "/metrics", "/version")
"""What a load balancer and a monitor ask for, without a key."""
MODELS = "/v1/models"
RETRY_AFTER_S = 1
SETTLE_S = 5.0
"""Seconds for an application to notice that its client has gone."""


def error_body(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """An error in OpenAI's envelope."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


async def refuse(
    send: Send, status: int, message: str, kind: str, code: str | int, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    await reply(send, status, error_body(message, kind, code), headers)


async def reply(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send a whole response of JSON."""
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


class Gate:
    """Lets known routes through, with a key where keys are asked for, bodies up to `max_bytes`, for `timeout_s`.

    Whatever ends a request early (its client, the time) reaches the application as a disconnect, which is what vLLM
    frees a sequence on.
    """

    def __init__(self, app: App, *, digests: Iterable[str], max_bytes: int, timeout_s: float) -> None:
        self.app = app
        self.digests = tuple(digests)
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        path, method = scope["path"].rstrip("/") or "/", scope["method"]
        if path not in OPEN and not self._has_key(scope):
            challenge = [(b"www-authenticate", b"Bearer")]
            await refuse(send, 401, "a valid API key is needed", "invalid_request_error", "invalid_api_key", challenge)
            return
        allowed = _method(path)
        if allowed is None:
            await refuse(send, 404, f"there is no {path[:200]}", "invalid_request_error", "unknown_url")
            return
        if method not in (allowed, "HEAD" if allowed == "GET" else allowed):
            what = [(b"allow", allowed.encode())]
            await refuse(
                send, 405, f"{path[:200]} takes {allowed}", "invalid_request_error", "method_not_allowed", what
            )
            return
        body = await self._body(scope, receive)
        if body is None:
            message = f"the request is larger than {self.max_bytes} bytes"
            await refuse(send, 413, message, "invalid_request_error", "request_too_large")
            return
        await self._answer(scope | {"path": path, "raw_path": path.encode()}, body, receive, send)

    def _has_key(self, scope: Any) -> bool:
        if not self.digests:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        digest = hashlib.sha256(key.strip()).hexdigest()
        # Every key is compared, so that the time tells nothing.
        found = [hmac.compare_digest(digest, known) for known in self.digests]
        return any(found) and scheme.lower() == b"bearer"

    async def _body(self, scope: Any, receive: Receive) -> bytes | None:
        """The request's body; None where it is too large."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.max_bytes:
            return None
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.max_bytes:
                return None
            if not message.get("more_body"):
                return body

    async def _answer(self, scope: Any, body: bytes, receive: Receive, send: Send) -> None:
        exchange = Exchange(body, receive, send)
        task = asyncio.ensure_future(self.app(scope, exchange.receive, exchange.send))
        try:
            done, _ = await asyncio.wait([task], timeout=self.timeout_s)
            if not done:
                await exchange.late(self.timeout_s)
                return
            await task
        except Exception:
            # The application has a handler for every error, which answered; it is raised again for the log.
            if not exchange.started:
                await refuse(send, 500, "the server failed on this request", "server_error", "internal_error")
            raise
        finally:
            if not task.done():
                exchange.gone.set()
                await asyncio.wait([task], timeout=SETTLE_S)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


class Exchange:
    """A request whose body is here, and its response."""

    def __init__(self, body: bytes, receive: Receive, send: Send) -> None:
        self._body: bytes | None = body
        self._receive, self._send = receive, send
        self.gone = asyncio.Event()
        self.started = False
        self.streams = False

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        left = asyncio.ensure_future(self._receive())
        ended = asyncio.ensure_future(self.gone.wait())
        try:
            await asyncio.wait([left, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            ended.cancel()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.started = True
            self.streams = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
        await self._send(message)

    async def late(self, timeout_s: float) -> None:
        """End a response whose time is up: an error, or in a stream an event of one and the end."""
        self.gone.set()
        message = f"the answer took longer than {timeout_s:g} s"
        if not self.started:
            await refuse(self._send, 504, message, "timeout", "timeout")
        elif self.streams:
            event = b"data: " + error_body(message, "timeout", "timeout") + b"\n\ndata: [DONE]\n\n"
            await self._send({"type": "http.response.body", "body": event})


class Limit:
    """Up to `most` requests at once; others, and all when the engine is dead, get 503 with Retry-After."""

    def __init__(self, app: App, most: int, alive: Callable[[], bool]) -> None:
        self.app, self.most, self.alive = app, most, alive
        self.inside = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in POSTS:
            await self.app(scope, receive, send)
            return
        retry = [(b"retry-after", str(RETRY_AFTER_S).encode())]
        if not self.alive():
            await refuse(send, 503, "the engine is being replaced", "server_error", "engine_dead", retry)
            return
        if self.inside >= self.most:
            message = f"{self.most} requests are under way or wait already"
            await refuse(send, 503, message, "server_error", "overloaded", retry)
            return
        self.inside += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.inside -= 1


class Defaults:
    """Sampling parameters of the engine's spec, where a request gives none: online they are what they are in batch."""

    def __init__(self, app: App, defaults: dict[str, dict[str, Any]]) -> None:
        self.app, self.defaults = app, defaults

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        given = self.defaults.get(scope["path"]) if scope["type"] == "http" else None
        if not given:
            await self.app(scope, receive, send)
            return
        message = await receive()
        body = message.get("body", b"")
        with contextlib.suppress(ValueError):  # the application says what is wrong with it
            asked = json.loads(body)
            if isinstance(asked, dict):
                body = json.dumps(given | asked).encode()
        first: list[Message] = [{**message, "body": body}]

        async def again() -> Message:
            return first.pop() if first else await receive()

        length = [(b"content-length", str(len(body)).encode())]
        headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"] + length
        await self.app({**scope, "headers": headers}, again, send)


def _method(path: str) -> str | None:
    if path in POSTS:
        return "POST"
    return "GET" if path in OPEN or path == MODELS or path.startswith(f"{MODELS}/") else None
