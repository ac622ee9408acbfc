"""What a language model is to the rest: requests of OpenAI's protocol in, responses out, whichever engine answers."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

from stages.core.errors import WorkerLost
from stages.engines.spec import Route


class RequestError(Exception):
    """A request that the engine does not take. `reason` is a short code, the message is for a person."""

    def __init__(self, reason: str, message: str, error_type: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.error_type = error_type


class EngineDead(WorkerLost):
    """The engine will answer nothing any more: whoever holds it has to be replaced."""


class TextEngine(Protocol):
    """A loaded model."""

    max_model_len: int
    """Tokens of a prompt and its answer together."""
    tokenizer: Any
    """The model's, as transformers gives it."""

    def submit(self, route: Route, body: dict[str, Any]) -> Future[dict[str, Any]]:
        """Ask for a response to `body`, a request to `route`. Requests are worked on together; call as often as you
        like, from any thread. The future raises RequestError, or EngineDead."""
        ...

    def close(self) -> None:
        """Free what the engine holds, its processes too."""
        ...
