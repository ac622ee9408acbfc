"""The parent's side of the killable workers: send documents, wait no longer than allowed, kill, start again.

Documents are sent ahead while the worker parses, and answered in order: the first one without an answer is the one that
the worker is at, so a crash or a hang is put to the right document and the ones behind it go to a fresh worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from stages.parsers.document import Options
from stages.parsers.frames import READ_BYTES, SMALL, head, take_frame

START_S = 60.0
"""A worker that is not ready by then will never be: a broken installation, not a document's fault."""

AHEAD_BYTES = 1 << 20
AHEAD_DOCUMENTS = 64
PIPE_BYTES = 1 << 20


class Request(NamedTuple):
    name: str
    media_type: str | None
    content: bytes | memoryview


class Answer(NamedTuple):
    """`meta["status"]` is ok, dropped or failed (then with reason, message and error_type); `text` is UTF-8."""

    meta: dict[str, Any]
    text: bytes


class WorkerError(RuntimeError):
    """No worker can be started."""


@dataclass(frozen=True)
class Spec:
    """All that a worker depends on: workers of the same spec are interchangeable."""

    options: Options = field(default_factory=Options)
    parsers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 60.0
    memory_mb: int = 2048

    def json(self) -> str:
        return json.dumps(asdict(self) | {"parsers": dict(self.parsers)})


class Process:
    """One worker process and the two pipes to it."""

    def __init__(self, spec: Spec) -> None:
        request_read, request_write = os.pipe()
        response_read, response_write = os.pipe()
        # The child finds what the parent finds; OCR in one thread, as the scheduler counts CPUs.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_THREAD_LIMIT": "1"}
        command = [sys.executable, "-P", "-m", "stages.parsers.worker", str(request_read), str(response_write)]
        try:
            self.popen = subprocess.Popen(
                command,
                pass_fds=(request_read, response_write),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError:
            os.close(request_write)
            os.close(response_read)
            raise
        finally:
            os.close(request_read)
            os.close(response_write)
        self.requests, self.responses = request_write, response_read
        for descriptor in (self.requests, self.responses):
            # Room for several documents, so that neither side waits for the other at each one. A wish, not a need.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(self.requests, False)
        os.set_blocking(self.responses, False)
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()
        self._poll = select.poll()
        self._poll.register(self.responses, select.POLLIN)
        self._writing = False
        self._queue(spec.json().encode(), b"")  # not an argument: it may hold passwords

    def send(self, request: Request) -> None:
        """Queue a request."""
        meta = json.dumps({"name": request.name, "media_type": request.media_type}).encode()
        self._queue(meta, request.content)

    def receive(self, timeout_s: float) -> Answer:
        """The next frame. Raises TimeoutError after `timeout_s`, EOFError when the worker has gone."""
        deadline = time.monotonic() + timeout_s
        while (answer := self._take()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for descriptor, _ in self._poll.poll(left * 1000 + 1):
                if descriptor == self.requests:
                    self.write()
                elif not self._read():
                    raise EOFError
        return answer

    def kill(self) -> int:
        """End the process and what it started. Returns its exit status, negative for a signal."""
        # The process is not reaped yet, so its id cannot belong to anyone else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        status = self.popen.wait()
        os.close(self.requests)
        os.close(self.responses)
        return status

    def wait(self) -> int:
        """Reap a process that has closed its pipes; kill it if it does not end."""
        try:
            status = self.popen.wait(timeout=1)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        self.kill()
        return status

    def _queue(self, meta: bytes, body: bytes | memoryview) -> None:
        start = head(meta, body) + meta
        if len(body) < SMALL:
            self._outgoing.append(memoryview(start + bytes(body)))
        else:
            self._outgoing += [memoryview(start), memoryview(body)]

    def write(self) -> None:
        """Write what is queued as far as the pipe takes it; `receive` goes on with the rest."""
        try:
            while self._outgoing:
                sent = os.writev(self.requests, list(islice(self._outgoing, 64)))
                while self._outgoing and sent >= len(self._outgoing[0]):
                    sent -= len(self._outgoing.popleft())
                if sent:
                    self._outgoing[0] = self._outgoing[0][sent:]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._outgoing.clear()  # the end of its answers tells
        if bool(self._outgoing) != self._writing:
            self._writing = not self._writing
            if self._writing:
                self._poll.register(self.requests, select.POLLOUT)
            else:
                self._poll.unregister(self.requests)

    def _read(self) -> bool:
        try:
            data = os.read(self.responses, READ_BYTES)
        except BlockingIOError:
            return True
        self._incoming += data
        return bool(data)

    def _take(self) -> Answer | None:
        frame = take_frame(self._incoming)
        return frame and Answer(json.loads(frame[0]) if frame[0] else {}, frame[1])


_idle: dict[tuple[int, Spec], list[Process]] = {}
_lock = threading.Lock()


def parse_all(requests: Iterable[Request], spec: Spec) -> Iterator[Answer]:
    """The answers to `requests`, in order. Whatever happens to a worker, each request gets exactly one answer.

    Workers are kept for the next call in this process. Raises WorkerError when none can be started.
    """
    todo = iter(requests)
    sent: deque[Request] = deque()
    worker: Process | None = None
    try:
        while True:
            if worker is None:
                worker = _borrow(spec)
                for request in sent:
                    worker.send(request)
                worker.write()
            _send_ahead(worker, todo, sent)
            if not sent:
                return
            try:
                answer = worker.receive(spec.timeout_s)
            except TimeoutError:
                worker.kill()
                worker = None
                answer = Answer(_timed_out(spec), b"")
            except EOFError:
                answer = Answer(_crashed(worker.wait()), b"")
                worker = None
            if not answer.meta:  # a beat
                continue
            request = sent.popleft()
            if answer.meta.get("unchanged"):
                answer = Answer(answer.meta, bytes(request.content))
            if answer.meta.get("last") and worker is not None:
                worker.wait()
                worker = None
            yield answer
    except BaseException:
        if worker is not None:
            worker.kill()
            worker = None
        raise
    finally:
        if worker is not None:
            with _lock:
                _idle.setdefault((os.getpid(), spec), []).append(worker)


def close_all() -> None:
    """End the idle workers of this process."""
    with _lock:
        processes = [process for key, kept in _idle.items() if key[0] == os.getpid() for process in kept]
        _idle.clear()
    for process in processes:
        process.kill()


def _send_ahead(worker: Process, todo: Iterator[Request], sent: deque[Request]) -> None:
    """Keep the worker supplied; many small documents go in one write, once half of those sent are answered."""
    size = sum(len(request.content) for request in sent)
    if sent and (size > AHEAD_BYTES // 2 or len(sent) > AHEAD_DOCUMENTS // 2):
        return
    while not sent or (size < AHEAD_BYTES and len(sent) < AHEAD_DOCUMENTS):
        request = next(todo, None)
        if request is None:
            break
        sent.append(request)
        size += len(request.content)
        worker.send(request)
        if len(sent) == 1:  # it begins while the others are put together
            worker.write()
    worker.write()


def _borrow(spec: Spec) -> Process:
    with _lock:
        kept = _idle.get((os.getpid(), spec))
        while kept:
            process = kept.pop()
            if process.popen.poll() is None:
                return process
            process.kill()
    try:
        process = Process(spec)
    except OSError as error:
        raise WorkerError(f"cannot start a parser process: {error}") from error
    try:
        process.write()
        process.receive(START_S)
    except (TimeoutError, EOFError) as error:
        status = process.wait()
        raise WorkerError(
            f"the parser process did not start (exit status {status}); `{sys.executable} -m stages.parsers.worker` "
            f"must be importable where the task runs"
        ) from error
    return process


def _timed_out(spec: Spec) -> dict[str, Any]:
    message = (
        f"parsing took more than timeout_s={spec.timeout_s:g} seconds; raise timeout_s if the document is worth it"
    )
    return {"status": "failed", "reason": "timeout", "message": message, "error_type": "TimeoutError"}


def _crashed(status: int) -> dict[str, Any]:
    cause = f"ended with status {status}"
    if status < 0:
        with contextlib.suppress(ValueError):  # a number without a name
            cause = f"was ended by {signal.Signals(-status).name}"
    message = f"the parser process {cause} while it parsed this document"
    return {"status": "failed", "reason": "crashed", "message": message, "error_type": "ProcessDied"}
