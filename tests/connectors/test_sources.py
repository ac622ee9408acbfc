"""Listings: every file once, every oddity an outcome, nothing a crash."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.sources import Selection, Source, list_sources, printable_path
from connectors.storage import StorageError


def listed(*uris: str | Path, **selection: Any) -> list[Source]:
    return list(list_sources([str(uri) for uri in uris], Selection(**selection), {}))


def names(*uris: str | Path, **selection: Any) -> list[str]:
    return [source.uri for source in listed(*uris, **selection)]


def reasons(*uris: str | Path, **selection: Any) -> dict[str, str]:
    return {source.uri: source.reason for source in listed(*uris, **selection) if source.reason}


def write(*paths: str) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(path)


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Without root's right to read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_folder_is_listed_with_sizes_times_and_versions(work: Path) -> None:
    write("docs/b.txt", "docs/a/c.txt", "docs/a.txt")
    found = listed("docs")
    assert [source.uri for source in found] == ["docs/a.txt", "docs/b.txt", "docs/a/c.txt"]
    first = found[0]
    status = os.stat("docs/a.txt")
    assert (first.size, first.modified_at) == (status.st_size, status.st_mtime)
    assert first.path == os.fsencode(work / "docs/a.txt")
    assert str(status.st_mtime_ns) in first.version
    assert names("docs") == names("./docs/") == names("docs/../docs")


def test_the_identity_is_the_place_as_it_was_named(work: Path) -> None:
    write("docs/a.txt")
    assert names("docs") == ["docs/a.txt"]
    assert names(work / "docs") == [f"{work}/docs/a.txt"]
    assert names(f"file://{work}/docs") == [f"{work}/docs/a.txt"]
    assert names("docs/a.txt") == ["docs/a.txt"]


def test_overlapping_roots_give_each_file_once(work: Path) -> None:
    write("docs/a.txt", "docs/sub/b.txt", "more/c.txt")
    assert names("docs/sub", "docs", "docs/*.txt", work / "docs", "more") == [
        "docs/sub/b.txt",
        "docs/a.txt",
        "more/c.txt",
    ]


def test_an_empty_folder_and_a_glob_without_a_match_give_nothing(work: Path) -> None:
    Path("docs").mkdir()
    assert names("docs") == []
    assert names("docs/*.pdf") == []


def test_what_is_not_there_is_refused_by_name(work: Path) -> None:
    write("docs/a.txt")
    with pytest.raises(FileNotFoundError, match="dosc does not exist"):
        listed("docs", "dosc")
    with pytest.raises(FileNotFoundError):
        listed("docs/a.txt/b")
    with pytest.raises(StorageError, match="foo"):
        listed("foo://bucket/docs")


def test_include_exclude_and_hidden(work: Path) -> None:
    write("docs/a.pdf", "docs/b.txt", "docs/drafts/c.pdf", "docs/.git/d.pdf", "docs/.e.pdf", "docs/deep/er/f.PDF")
    assert names("docs", include=("*.pdf",)) == ["docs/a.pdf", "docs/drafts/c.pdf"]
    assert names("docs", include=("*.pdf",), exclude=("drafts/",)) == ["docs/a.pdf"]
    assert names("docs", exclude=("*.pdf", "deep")) == ["docs/b.txt"]
    assert names("docs", include=("/*.pdf", "**/er/*")) == ["docs/a.pdf", "docs/deep/er/f.PDF"]
    assert names("docs", include=("*.pdf",), hidden=True) == [
        "docs/.e.pdf",
        "docs/a.pdf",
        "docs/.git/d.pdf",
        "docs/drafts/c.pdf",
    ]
    assert names("docs", exclude=("*", "!*.txt")) == ["docs/b.txt"]
    assert names("docs", exclude=("*.pdf", "!c.pdf")) == ["docs/b.txt", "docs/deep/er/f.PDF", "docs/drafts/c.pdf"]


def test_a_hidden_folder_that_is_named_outright_is_read(work: Path) -> None:
    write(".docs/a.txt")
    assert names(".docs") == [".docs/a.txt"]
    assert names(".docs/a.txt") == [".docs/a.txt"]


@pytest.mark.parametrize("pattern", ["!", "\\"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no pattern"):
        Selection(exclude=(pattern,))


def test_patterns_hold_for_globs_from_the_folder_that_they_begin_in(work: Path) -> None:
    write("docs/a/x.txt", "docs/b/x.txt", "docs/b/y.md", "docs/.c/x.txt")
    assert names("docs/*/x.txt") == ["docs/a/x.txt", "docs/b/x.txt"]
    assert names("docs/*", exclude=("b/",)) == ["docs/a/x.txt"]
    assert names("docs/**", exclude=("b/",)) == ["docs/a/x.txt"]
    assert names("docs/**", include=("*.md",)) == ["docs/b/y.md"]
    assert sorted(names("docs/**", hidden=True)) == ["docs/.c/x.txt", "docs/a/x.txt", "docs/b/x.txt", "docs/b/y.md"]


def test_a_name_that_looks_like_a_glob_is_taken_literally_where_it_exists(work: Path) -> None:
    write("docs/a[1].txt", "docs/a1.txt", "[docs]/b.txt")
    assert names("docs/a[1].txt") == ["docs/a[1].txt"]
    assert names("[docs]") == ["[docs]/b.txt"]
    assert names("docs/a[0-9].txt") == ["docs/a1.txt"]


def test_a_file_named_outright_is_taken_whatever_the_patterns_say(work: Path) -> None:
    write("docs/a.txt")
    assert names("docs/a.txt", exclude=("*",)) == ["docs/a.txt"]


def test_links_to_files_and_folders_are_followed(work: Path) -> None:
    write("docs/a.txt", "elsewhere/b.txt")
    os.symlink("a.txt", "docs/link.txt")
    os.symlink("../elsewhere", "docs/one")
    os.symlink("../elsewhere", "docs/two")
    assert names("docs") == ["docs/a.txt", "docs/link.txt", "docs/one/b.txt", "docs/two/b.txt"]


def test_loops_and_broken_links_are_one_outcome_each(work: Path) -> None:
    write("docs/a.txt", "docs/sub/b.txt")
    os.symlink("..", "docs/sub/up")
    os.symlink(".", "docs/here")
    os.symlink("self", "docs/self")
    os.symlink("pong", "docs/ping")
    os.symlink("ping", "docs/pong")
    os.symlink("nowhere", "docs/broken.txt")
    assert reasons("docs") == {
        "docs/sub/up": "symlink_loop",
        "docs/here": "symlink_loop",
        "docs/self": "symlink_loop",
        "docs/ping": "symlink_loop",
        "docs/pong": "symlink_loop",
        "docs/broken.txt": "broken_link",
    }
    assert {"docs/a.txt", "docs/sub/b.txt"} < set(names("docs"))
    assert reasons("docs", exclude=("*",)) == {}
    assert reasons("docs/self") == {"docs/self": "symlink_loop"}


def test_two_folders_that_link_to_each_other_end(work: Path) -> None:
    write("docs/a/x.txt", "docs/b/y.txt")
    os.symlink("../b", "docs/a/b")
    os.symlink("../a", "docs/b/a")
    found = names("docs")
    assert found.count("docs/a/x.txt") == 1
    assert reasons("docs") == {"docs/a/b/a": "symlink_loop", "docs/b/a/b": "symlink_loop"}


def test_pipes_sockets_and_devices_are_never_opened(work: Path) -> None:
    write("docs/a.txt")
    os.mkfifo("docs/pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("docs/socket")
        os.symlink("/dev/zero", "docs/zero.txt")
        assert reasons("docs") == dict.fromkeys(["docs/pipe", "docs/socket", "docs/zero.txt"], "not_a_file")
    assert reasons("docs/pipe") == {"docs/pipe": "not_a_file"}


def test_unreadable_folders_are_an_outcome(work: Path) -> None:
    write("docs/a.txt", "docs/locked/b.txt", "docs/left-out/c.txt")
    os.chmod("docs/locked", 0)
    os.chmod("docs/left-out", 0)
    with nobody(), pytest.raises(StorageError, match="may not be looked at"):
        listed("docs")
    os.chmod(work, 0o755)
    with nobody():
        assert reasons("docs", exclude=("left-out/",)) == {"docs/locked": "unreadable"}
    os.chmod("docs/locked", 0o444)  # its names may be seen, its files not
    with nobody():
        assert reasons("docs", exclude=("left-out/",)) == {"docs/locked/b.txt": "unreadable"}


def test_folders_nested_deeper_than_calls_may_be(work: Path) -> None:
    Path("docs").mkdir()
    os.chdir("docs")
    for name in ["d"] * 1100:
        os.mkdir(name)
        os.chdir(name)
    Path("x.txt").write_text("deep")
    for name in ["e" * 200] * 10:
        os.mkdir(name)
        os.chdir(name)
    os.chdir(work)
    found = listed("docs")
    subprocess.run(["rm", "-rf", "docs"], check=True)  # pytest's own tidying is recursive
    assert [source.uri for source in found if not source.reason] == [f"docs/{'d/' * 1100}x.txt"]
    assert [source.reason for source in found if source.reason] == ["unreadable"]  # longer than a path may be


NAMES = [
    b"plain.txt",
    b"a%FF.txt",
    b"a\xff.txt",
    b"a%25FF.txt",
    b"a%2525FF.txt",
    b"a%ff.txt",
    b"100%.txt",
    b"100%\xe9.txt",
    b"50%25.txt",
    b"hash#L3.txt",
    b"new\nline.txt",
    b"quest?ion*.txt",
    b"[x].txt",
    b"caf\xc3\xa9.txt",
    b"cafe\xcc\x81.txt",
    b"caf\xe9.txt",
    b"caf\xc3\xa9-\xe9.txt",
    b"\xf0\x9f\x8c\x8a.txt",
    b" space .txt",
    b"a::b.txt",
    b"~.txt",
]


def test_every_name_is_kept_apart_from_every_other_and_can_be_opened(work: Path) -> None:
    folder = os.fsencode(work / "docs")
    os.mkdir(folder)
    for name in NAMES:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(name)
    found = listed("docs")
    assert len({source.uri for source in found}) == len(NAMES)
    for source in found:
        assert not source.reason
        source.uri.encode()
        with open(source.path, "rb") as file:
            assert os.path.basename(source.path) == file.read()
    uris = {os.path.basename(source.path): source.uri.removeprefix("docs/") for source in found}
    assert uris[b"caf\xc3\xa9-\xe9.txt"] == "café-%E9.txt"
    assert uris[b"100%.txt"] == "100%.txt"
    assert uris[b"a\xff.txt"] == "a%FF.txt"
    assert uris[b"a%FF.txt"] == "a%25FF.txt"


def test_printable_paths_differ_where_paths_do() -> None:
    """Over all names of up to five of the pieces that could be confused."""
    from itertools import product

    pieces = ["%", "2", "5", "F", "\udcff"]
    paths = {"".join(parts) for n in range(1, 6) for parts in product(pieces, repeat=n)}
    assert len({printable_path(path) for path in paths}) == len(paths)


def test_a_listing_is_lazy(work: Path) -> None:
    write("docs/a.txt", "docs/b.txt", "docs/sub/c.txt")
    listing = list_sources(["docs"], Selection(), {})
    assert next(listing).uri == "docs/a.txt"
    os.unlink("docs/b.txt")
    os.unlink("docs/sub/c.txt")
    os.rmdir("docs/sub")
    assert [(source.uri, source.reason) for source in listing] == [("docs/b.txt", "vanished"), ("docs/sub", "vanished")]


def test_the_home_folder_may_be_written_as_a_tilde(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("docs/a.txt")
    monkeypatch.setenv("HOME", str(work))
    assert names("~/docs") == [f"{work}/docs/a.txt"]


def test_files_of_another_user_in_a_shared_folder() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        write(f"{folder}/a.txt")
        os.chmod(f"{folder}/a.txt", 0)
        with nobody():
            (source,) = listed(folder)
        assert source.reason == ""  # it can be listed; that it cannot be read shows when it is
