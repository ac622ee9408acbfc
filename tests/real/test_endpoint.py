"""The official client against the endpoint: two models behind the router, a real engine each."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

pytestmark = pytest.mark.timeout(400)

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(endpoint: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{endpoint}/v1", api_key="right", max_retries=0, timeout=120) as made:
        yield made


def metric(endpoint: str, name: str, model: str = "smollm2") -> float:
    text = httpx.get(f"{endpoint}/metrics", timeout=30).text
    found = re.search(rf'^{name}{{[^}}]*model_name="{model}"[^}}]*}} (\S+)$', text, re.M)
    assert found, text[:2000]
    return float(found[1])


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=HELLO)
    choice = answer.choices[0]
    assert (choice.message.content or "").startswith("The capital of France is Paris")
    assert choice.finish_reason == "stop"
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_spec_s_sampling_holds_where_a_request_gives_none(client: openai.OpenAI) -> None:
    story: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell a long story of a whale."}]
    default = client.chat.completions.create(model="smollm2", messages=story)
    assert default.usage
    assert default.usage.completion_tokens == 24
    again = client.chat.completions.create(model="smollm2", messages=story)
    assert again.choices[0].message.content == default.choices[0].message.content  # temperature 0
    own = client.chat.completions.create(model="smollm2", messages=story, max_tokens=3)
    assert own.usage
    assert own.usage.completion_tokens == 3


def test_chat_stream_says_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="smollm2", messages=HELLO)
    chunks = list(
        client.chat.completions.create(
            model="smollm2", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_several_answers_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=HELLO, n=3, temperature=1.0, seed=1, logprobs=True, top_logprobs=2, max_tokens=4
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in logprobs.content)


def test_response_format(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="smollm2",
        messages=HELLO,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content or "")["city"] in ("Paris", "Rome")


def test_tools(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=60,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "weather"
    assert json.loads(calls[0].function.arguments)["city"] in ("Paris", "Rome")


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smollm2", prompt=["One, two, three,", "Monday, Tuesday,"], max_tokens=6)
    assert len(answer.choices) == 2
    assert " four" in answer.choices[0].text
    streamed = client.completions.create(model="smollm2", prompt="One, two, three,", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == answer.choices[0].text


def test_embeddings(client: openai.OpenAI, endpoint: str, embedding_model: str) -> None:
    from sentence_transformers import SentenceTransformer

    texts = ["A lighthouse.", "Ships at sea, and the fog."]
    expected = SentenceTransformer(embedding_model, device="cpu").encode(texts, normalize_embeddings=True)
    floats = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
    vectors = np.array([item.embedding for item in floats.data])
    np.testing.assert_allclose(vectors, expected, atol=2e-3)
    raw = httpx.post(
        f"{endpoint}/v1/embeddings",
        json={"model": "minilm", "input": texts, "encoding_format": "base64"},
        headers={"authorization": "Bearer right"},
        timeout=60,
    ).json()
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), np.float32) for item in raw["data"]]
    np.testing.assert_allclose(decoded, vectors, atol=1e-6)


def test_models(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"smollm2", "minilm"}
    assert client.models.retrieve("minilm").id == "minilm"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_without_a_key(endpoint: str) -> None:
    assert httpx.get(f"{endpoint}/health", timeout=30).status_code == 200
    assert httpx.get(f"{endpoint}/version", timeout=30).json()["version"]
    assert metric(endpoint, "vllm:num_requests_running") >= 0
    assert metric(endpoint, "vllm:num_requests_running", "minilm") >= 0
    wrong = openai.OpenAI(base_url=f"{endpoint}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as error:
        wrong.chat.completions.create(model="smollm2", messages=HELLO)
    assert error.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        wrong.models.list()


@pytest.mark.parametrize(
    ("request_body", "error"),
    [
        ({"messages": []}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": None}]}, openai.BadRequestError),
        ({"messages": HELLO, "temperature": -1}, openai.BadRequestError),
        ({"messages": HELLO, "max_tokens": 0}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, openai.BadRequestError),
        ({"messages": HELLO, "model": "gpt-4"}, openai.NotFoundError),
        ({"messages": HELLO, "model": "minilm"}, openai.NotFoundError),
        ({"messages": HELLO, "model": 3}, openai.NotFoundError),
        ({"messages": HELLO, "extra_body": {"structured_outputs": {"grammar": "root ::= ("}}}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "x" * 2_000_000}]}, openai.APIStatusError),
    ],
)
def test_every_error_is_openai_s(client: openai.OpenAI, request_body: Any, error: type[openai.APIStatusError]) -> None:
    with pytest.raises(error) as raised:
        client.chat.completions.create(**({"model": "smollm2"} | request_body))
    assert raised.value.body
    assert "message" in raised.value.body
    assert raised.value.type
    text = raised.value.response.text
    assert "Traceback" not in text
    assert "/site-packages" not in text
    assert "File \\" not in text
    if len(str(request_body)) > 1_000_000:
        assert raised.value.status_code == 413


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{not json", 400),
        ("POST", "/v1/chat/completions", b"[1]", 400),
        ("POST", "/v1/chat/completions", b"", 400),
        ("POST", "/v1/nothing", b"{}", 404),
        ("GET", "/invocations", b"", 404),
        ("GET", "/v1/completions", b"", 405),
        ("DELETE", "/v1/models", b"", 405),
    ],
)
def test_odd_requests(endpoint: str, method: str, path: str, body: bytes, status: int) -> None:
    headers = {"authorization": "Bearer right", "content-type": "application/json"}
    answer = httpx.request(method, f"{endpoint}{path}", content=body, headers=headers, timeout=30)
    assert answer.status_code == status
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}


def test_streams_that_are_dropped_free_their_sequences(endpoint: str) -> None:
    async def open_and_drop(client: openai.AsyncOpenAI, number: int) -> None:
        stream = await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": f"Count from {number} on."}],
            max_tokens=1500,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(aiter(stream))
        await stream.close()

    async def all_of_them() -> None:
        async with openai.AsyncOpenAI(base_url=f"{endpoint}/v1", api_key="right", max_retries=0) as client:
            async with asyncio.timeout(240):
                await asyncio.gather(*(open_and_drop(client, number) for number in range(200)))

    asyncio.run(all_of_them())
    dropped = time.monotonic()
    while running := metric(endpoint, "vllm:num_requests_running") + metric(endpoint, "vllm:num_requests_waiting"):
        assert time.monotonic() < dropped + 5, f"{running} requests still run"


def test_more_requests_than_the_limit(endpoint: str) -> None:
    async def ask(client: openai.AsyncOpenAI) -> openai.InternalServerError | None:
        try:
            await client.chat.completions.create(
                model="smollm2", messages=HELLO, max_tokens=12, extra_body={"ignore_eos": True}
            )
        except openai.InternalServerError as error:
            return error
        return None

    async def all_of_them() -> list[openai.InternalServerError | None]:
        limits = httpx.Limits(max_connections=400)
        async with openai.AsyncOpenAI(
            base_url=f"{endpoint}/v1",
            api_key="right",
            max_retries=0,
            timeout=200,
            http_client=openai.DefaultAsyncHttpxClient(limits=limits, timeout=200),
        ) as client:
            return await asyncio.gather(*(ask(client) for _ in range(320)))

    answers = asyncio.run(all_of_them())
    refused = [error for error in answers if error is not None]
    assert 0 < len(refused) <= 80
    for error in refused:
        assert (error.status_code, error.code, error.response.headers["retry-after"]) == (503, "overloaded", "1")
    assert httpx.get(f"{endpoint}/health", timeout=30).status_code == 200
