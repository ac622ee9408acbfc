"""Places: what is committed is there whole or not at all, whatever is killed meanwhile."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from connectors.storage import Place, StorageError, open_uri


def test_a_place_is_absolute_at_once_and_pickles(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("out/here")
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(place))
    assert again == place
    assert again.root == str(work / "out/here")
    assert again.child("x").root == str(work / "out/here/x")
    assert again.path("y") == str(work / "out/here/y")
    monkeypatch.setenv("HOME", str(work))
    assert Place("~/out").root == str(work / "out")
    assert Place(f"file://{work}/out").root == str(work / "out")
    assert Place(f"file://{work}/out").local


@pytest.mark.parametrize("name", ["a::b", "a#b%20c", "a[1]*?", "new\nline", "ü", " "])
def test_odd_names_are_just_names(work: Path, name: str) -> None:
    place = Place(name)
    place.commit(f"{name}.bin", b"content")
    assert Path(name, f"{name}.bin").read_bytes() == b"content"
    assert place.names(".bin") == [f"{name}.bin"]
    assert place.read(f"{name}.bin") == b"content"
    place.remove([f"{name}.bin"])
    assert not place.exists(f"{name}.bin")
    assert [p.name for p in work.iterdir()] == [name]


def test_commit_read_names_remove(work: Path) -> None:
    place = Place("out")
    assert place.names() == []
    assert place.read_or_none("a") is None
    with pytest.raises(FileNotFoundError):
        place.read("a")
    for name in ("b.parquet", "a.parquet", "_hidden.parquet", ".b.parquet.tmp"):
        assert place.commit(name, memoryview(name.encode()))
    assert place.names() == place.names(".parquet") == ["a.parquet", "b.parquet"]
    assert place.exists("_hidden.parquet")
    place.commit("a.parquet", b"")
    assert place.read("a.parquet") == b""
    place.remove(["a.parquet", "never there"])
    assert place.names() == ["b.parquet"]


def test_once_leaves_what_is_there(work: Path) -> None:
    place = Place("out")
    assert place.commit("a", b"first", once=True)
    assert not place.commit("a", b"second", once=True)
    assert place.read("a") == b"first"
    assert os.listdir("out") == ["a"]


def test_of_many_that_commit_once_together_one_wins(work: Path) -> None:
    place = Place("out")
    barrier = threading.Barrier(8)
    won: list[bytes] = []

    def commit(content: bytes) -> None:
        barrier.wait()
        if place.commit("a", content, once=True):
            won.append(content)

    threads = [threading.Thread(target=commit, args=(bytes([n]) * 100_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [place.read("a")]
    assert os.listdir("out") == ["a"]


def test_update_writes_only_what_differs(work: Path) -> None:
    place = Place("out")
    place.update("a", b"one")
    before = os.stat("out/a")
    place.update("a", memoryview(b"one"))
    assert os.stat("out/a").st_ino == before.st_ino
    place.update("a", b"two")
    assert place.read("a") == b"two"


def test_a_commit_that_fails_leaves_the_old_content_and_no_temporary_file(work: Path) -> None:
    place = Place("out")
    place.commit("a", b"old")
    os.mkdir("out/folder")
    with pytest.raises(OSError, match="directory"):
        place.commit("folder", b"new")
    with pytest.raises(OSError, match="too long"):
        place.commit("x" * 300, b"new")
    assert sorted(os.listdir("out")) == ["a", "folder"]


COMMITTING = """
import sys
from connectors.storage import Place
place = Place("out")
while True:
    for letter in b"ab":
        place.commit("name", bytes([letter]) * 5_000_000)
        print("committed", flush=True)
"""


def committing() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", COMMITTING], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process that is started elsewhere import our packages."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


@pytest.mark.destructive
@pytest.mark.usefixtures("importable")
def test_whatever_is_killed_the_content_is_whole_and_leftovers_are_known(work: Path) -> None:
    place = Place("out")
    for delay in (0.0, 0.003, 0.006, 0.009, 0.012):
        writer = committing()
        assert writer.stdout
        assert writer.stdout.readline() == "committed\n"
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(delay)  # the moment is chosen by the clock: that is the test
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        content = place.read("name")
        assert len(content) == 5_000_000
        assert len(set(content)) == 1
        assert set(os.listdir("out")) == {"name", *place.leftovers()}
    place.commit(".name.0123abcd.tmp", b"as a killed writer leaves it")
    assert ".name.0123abcd.tmp" in place.leftovers()
    place.remove(place.leftovers())
    assert os.listdir("out") == ["name"]


def test_writable_says_what_is_wrong_and_leaves_nothing(work: Path) -> None:
    assert Place("a/b/c").writable() is None
    assert list(work.iterdir()) == []
    Path("file").write_text("")
    assert "not a directory" in str(Place("file/out").writable())
    assert "not a directory" in str(Place("file").writable())
    os.symlink("nowhere", "link")
    assert "not a directory" in str(Place("link/out").writable())
    assert Place("/proc/batchmill/out").writable()
    assert "foo" in str(Place("foo://bucket/out").writable())
    os.mkdir("locked")
    os.chmod("locked", 0o555)
    os.chmod(work, 0o755)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        assert "Permission denied" in str(Place("locked/out").writable())
    finally:
        os.seteuid(user)


def test_a_store_that_cannot_be_reached_is_an_oserror() -> None:
    with pytest.raises(StorageError):
        open_uri("foo://bucket", {})
    down = {
        "endpoint_url": "http://127.0.0.1:9",
        "key": "k",
        "secret": "s",
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    assert "127.0.0.1:9" in str(Place("s3://bucket/out", tuple(down.items())).writable())
