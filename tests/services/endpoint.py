"""`batchmill serve` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(
    folder: Path, declared: dict[str, Any], **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of an endpoint that answers, and its process; it is stopped with SIGTERM."""
    port = free_port()
    file = folder / "endpoint.yaml"
    file.write_text(yaml.safe_dump(declared))
    log = folder / "endpoint.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobs.cli", "serve", str(file), "--port", str(port)],
            stdout=output,
            stderr=output,
            env=os.environ | environment,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 240
        while not well(address):
            assert process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.5)
        yield address, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def well(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=20).status_code == 200
    except httpx.HTTPError:
        return False
