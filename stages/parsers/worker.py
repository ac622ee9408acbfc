"""The child process that parses: documents come in on one pipe, results go out on another, in the same order.

Frames are plain data, so that the parent never unpickles what a process that touched hostile bytes has sent:

    request:   meta: JSON {name, media_type};      body: the document's bytes
    response:  meta: JSON (see `_ok` and `_lost`); body: the text in UTF-8, or nothing where it is `unchanged`

Run as `python -m stages.parsers.worker IN_FD OUT_FD`; the first request's meta is the configuration. It ends at the end
of IN_FD, so it does not outlive its parent: a document that would keep it longer is cut off by its own alarm clock.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from stages.parsers import registry, sniff
from stages.parsers.document import Document, Options, Parser, Refusal, Source
from stages.parsers.frames import FrameReader, write_frame

GRACE_S = 5.0
"""The parent kills first; the alarm is for a child whose parent is gone."""

LOOK_AT_MEMORY = 1 << 20
"""Bytes of documents after which the process looks at how much memory it has taken."""

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

VISIBLE = re.compile(r"[^\s\0\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufe00-\ufe0f]")

ALLOCATION_FAILED = re.compile(r"\b[mc]alloc\b.*failed|bad_alloc|cannot allocate memory|out of memory", re.IGNORECASE)


def main() -> None:
    requests, responses = FrameReader(int(sys.argv[1])), int(sys.argv[2])
    _silence()
    first = requests.read()
    if first is None:
        return
    spec = json.loads(first[0])
    options = Options(**spec["options"] | {"passwords": tuple(spec["options"]["passwords"])})
    _limit_memory(spec["memory_mb"])
    serve(requests, responses, options, spec["parsers"], spec["timeout_s"], spec["memory_mb"])


def serve(
    requests: FrameReader,
    responses: int,
    options: Options,
    parsers: dict[str, str],
    timeout_s: float,
    memory_mb: int,
) -> None:
    """Answer requests until they end. System calls are few: they are most of what a small document costs here."""
    table = registry.PARSERS | {media_type: registry.Entry(path) for media_type, path in parsers.items()}
    loaded: dict[str, Parser] = {}
    alarm = Alarm(timeout_s)

    def find(media_type: str) -> Parser:
        if media_type not in loaded:
            loaded[media_type] = registry.load(table[media_type])
            write_frame(responses, b"", b"")  # a beat: the document's clock starts after the imports
            alarm.set(anew=True)
        return loaded[media_type]

    write_frame(responses, b"", b"")
    peak_kb = _peak_kb() + memory_mb * 512
    since = 0
    while True:
        if not requests.at_hand():
            alarm.off()
        frame = requests.read()
        if frame is None:
            return
        request, content = json.loads(frame[0]), frame[1]
        alarm.set()
        meta, text = _answer(request, content, options, frozenset(table), find)
        if text == content and text:
            meta["unchanged"], text = True, b""
        since += len(content) + LOOK_AT_MEMORY // 16
        # A process that came near its limit starts afresh, so that what one document leaves behind hurts no other.
        if meta.get("reason") == "memory_limit" or (since > LOOK_AT_MEMORY and _peak_kb() > peak_kb):
            meta["last"] = True
        since = 0 if since > LOOK_AT_MEMORY else since
        write_frame(responses, json.dumps(meta).encode(), text)
        if "last" in meta:
            return


class Alarm:
    """Death by SIGALRM, whose default action also ends a loop in C. Setting it again costs nothing as long as it has
    the document's time ahead of it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._due = 0.0

    def set(self, anew: bool = False) -> None:
        now = time.monotonic()
        if anew or self._due < now + self._timeout_s + GRACE_S / 2:
            signal.setitimer(signal.ITIMER_REAL, self._timeout_s + GRACE_S)
            self._due = now + self._timeout_s + GRACE_S

    def off(self) -> None:
        if self._due:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._due = 0.0


def parse(
    content: bytes,
    name: str,
    media_type: str | None,
    options: Options,
    supported: frozenset[str],
    find: Callable[[str], Parser],
) -> tuple[str, Document]:
    """The media type of `content` and what its parser makes of it. Raises Refusal, or what the parser raises."""
    media_type = media_type or sniff.media_type(content, name)
    media_type = media_type if media_type in supported else registry.ALIASES.get(media_type, media_type)
    if media_type not in supported:
        raise Refusal("unsupported_type", f"there is no parser for {media_type}")
    document = find(media_type)(content, Source(name, media_type, options))
    if not VISIBLE.search(document.text):
        raise sniff.empty()
    return media_type, document


def _answer(
    request: dict[str, Any],
    content: bytes,
    options: Options,
    supported: frozenset[str],
    find: Callable[[str], Parser],
) -> tuple[dict[str, Any], bytes]:
    try:
        media_type, document = parse(content, request["name"], request["media_type"], options, supported, find)
        return _ok(media_type, document)
    except Refusal as refusal:
        return _lost(refusal.status, refusal.reason, str(refusal), type(refusal).__name__)
    except MemoryError:
        return _lost("failed", "memory_limit", "the document needs more memory than memory_mb allows", "MemoryError")
    except RecursionError:
        return _lost("failed", "damaged", "the document is nested too deeply", "RecursionError")
    except Exception as error:  # noqa: BLE001 - parsers raise what they like; the document's outcome says what
        if ALLOCATION_FAILED.search(str(error)):
            return _lost(
                "failed",
                "memory_limit",
                f"the document needs more memory than memory_mb allows: {error}",
                type(error).__name__,
            )
        return _lost("failed", "damaged", f"the parser gave up: {error or 'no message'}", type(error).__name__)


_encode = json.JSONEncoder(ensure_ascii=False, default=str, sort_keys=True).encode


def _ok(media_type: str, document: Document) -> tuple[dict[str, Any], bytes]:
    """The texts of headings stay out: they are where their ranges are in the document's text."""
    headings, pages = document.headings, document.pages
    meta = {
        "status": "ok",
        "media_type": media_type,
        "title": scrub(document.title),
        "metadata": _encode(scrub(document.metadata)),
        "pages": [[p.page for p in pages], [p.start for p in pages], [p.end for p in pages]] if pages else None,
        "headings": [[h.level for h in headings], [h.start for h in headings], [h.end for h in headings]],
    }
    return meta, document.text.replace("\0", REPLACEMENT).encode("utf-8", "replace")


def scrub(value: Any) -> Any:
    """`value` with what Arrow cannot hold (lone surrogates, NUL) replaced, one character for one."""
    if isinstance(value, str):
        if value.isascii() and "\0" not in value:
            return value
        return value.replace("\0", REPLACEMENT).encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {scrub(str(key)): scrub(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrub(item) for item in value]
    return value


def _lost(status: str, reason: str, message: str, error_type: str) -> tuple[dict[str, Any], bytes]:
    return {"status": status, "reason": reason, "message": message[:4000], "error_type": error_type}, b""


def _silence() -> None:
    """C libraries print; nothing may reach the parent's terminal or the frames."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def _limit_memory(memory_mb: int) -> None:
    if sys.platform != "linux":  # others do not enforce it
        return
    with open("/proc/self/statm", encoding="ascii") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    limit = size + (memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
