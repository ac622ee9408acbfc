"""Lists the sources of documents, lazily and without ever stopping at a bad one."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import fsspec
import pathspec

from connectors.storage import storage_options


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or a part of one that holds rows, as it was when it was listed."""

    uri: str
    """The identity: as the user named the place, then the path below it. Bytes that are not UTF-8 appear as %XX."""
    path: bytes
    """What opens it: an absolute path as the operating system has it, or a store's key."""
    size: int = 0
    modified_at: float | None = None
    """Seconds since 1970, UTC."""
    version: str = ""
    """Changes when the content does: the store's etag, else size and modification time."""
    part: str = ""
    """For a file of rows: the piece, `start:end:line` in bytes (JSONL) or `first:end` in row groups (Parquet)."""
    reason: str = ""
    message: str = ""
    """Why it cannot be read, where the listing shows that already."""

    @property
    def key(self) -> str:
        return f"{self.uri}\0{self.part}\0{self.version}"


@dataclass(frozen=True)
class Selection:
    """Which of the listed files to take. Patterns are gitignore's: `*.pdf` at any depth, `drafts/`, `**/x?.md`."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    hidden: bool = False

    def accepts(self) -> Any:
        included = pathspec.GitIgnoreSpec.from_lines(self.include) if self.include else None
        excluded = pathspec.GitIgnoreSpec.from_lines(self.exclude) if self.exclude else None

        def accepts(relative: str) -> bool:
            if not self.hidden and any(part.startswith(".") for part in relative.split("/")):
                return False
            if included is not None and not included.match_file(relative):
                return False
            return excluded is None or not excluded.match_file(relative)

        return accepts


def list_sources(uris: Iterable[str], selection: Selection, options: dict[str, Any]) -> Iterator[Source]:
    """Each file under each of `uris` once, in a stable order. Raises FileNotFoundError where a URI names nothing."""
    seen: set[bytes] = set()
    for uri in uris:
        found = _remote(uri, selection, options) if is_remote(uri) else _local(local_path(uri), selection)
        any_found = False
        for source in found:
            any_found = True
            identity = hashlib.blake2b(source.uri.encode(), digest_size=16).digest()
            if identity not in seen:
                seen.add(identity)
                yield source
        if not any_found and not is_remote(uri) and not os.path.lexists(local_path(uri)) and not glob.has_magic(uri):
            raise FileNotFoundError(f"{uri} does not exist")


def is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith("file://")


def local_path(uri: str) -> str:
    return uri.removeprefix("file://")


def _local(root: str, selection: Selection) -> Iterator[Source]:
    accepts = selection.accepts()
    roots = sorted(glob.iglob(root, recursive=True)) if not os.path.lexists(root) and glob.has_magic(root) else [root]
    for start in roots:
        start = os.path.normpath(start)
        if os.path.isdir(start):
            yield from _walk(start, start, accepts, ())
        elif os.path.lexists(start) and (start == os.path.normpath(root) or accepts(os.path.basename(start))):
            # A file that is named outright is taken, whatever the patterns say; a glob's matches pass them.
            yield _local_file(start)


def _walk(root: str, directory: str, accepts: Any, ancestors: tuple[tuple[int, int], ...]) -> Iterator[Source]:
    try:
        status = os.stat(directory)
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        yield _unlisted(directory, error)
        return
    inode = (status.st_dev, status.st_ino)
    if inode in ancestors:
        # Only a link back to an ancestor is a loop; a second link to the same folder elsewhere is not.
        yield replace(_named(directory), reason="symlink_loop", message="the link leads back to a folder above it")
        return
    for entry in entries:
        relative = printable_path(os.path.relpath(entry.path, root))
        if _is_dir(entry):
            # The patterns of a folder are judged at its files, except that a hidden folder need not be entered.
            if accepts(relative) or not entry.name.startswith("."):
                yield from _walk(root, entry.path, accepts, (*ancestors, inode))
        elif accepts(relative):
            yield _local_file(entry.path)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _local_file(path: str) -> Source:
    try:
        status = os.stat(path)
    except OSError as error:
        return _unlisted(path, error)
    if not stat.S_ISREG(status.st_mode):
        # Opening a pipe or a device could wait for ever.
        return replace(_named(path), reason="not_a_file", message="a pipe, socket or device holds no document")
    version = f"{status.st_size}-{status.st_mtime_ns}"
    return replace(_named(path), size=status.st_size, modified_at=status.st_mtime, version=version)


def _named(path: str) -> Source:
    return Source(uri=printable_path(path), path=os.fsencode(os.path.abspath(path)), version="unread")


def _unlisted(path: str, error: OSError) -> Source:
    reason = {
        "FileNotFoundError": "broken_link" if os.path.islink(path) else "vanished",
        "PermissionError": "unreadable",
    }.get(type(error).__name__, "symlink_loop" if "symbolic links" in str(error) else "unreadable")
    return replace(_named(path), reason=reason, message=error.strerror or str(error))


def printable_path(path: str) -> str:
    """`path` as text: bytes that are not UTF-8 (surrogates in Python's file names) become %XX, and so does a `%`
    in such a name, to keep names apart."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raw = os.fsencode(path)
        return "".join(
            c if c.isascii() and c != "%" else quote(c.encode("utf-8", "surrogateescape")) for c in os.fsdecode(raw)
        )
    return path


def _remote(uri: str, selection: Selection, options: dict[str, Any]) -> Iterator[Source]:
    filesystem, path = fsspec.core.url_to_fs(uri, **storage_options(uri, options))
    scheme = uri.split("://", 1)[0]
    accepts = selection.accepts()
    if glob.has_magic(path):
        found: Iterable[dict[str, Any]] = filesystem.glob(path, detail=True).values()
        root = path.split("*", 1)[0].rsplit("/", 1)[0]
    else:
        found, root = _remote_walk(filesystem, path), path
    for info in found:
        name = str(info["name"])
        if info["type"] != "file" or name.endswith("/"):
            continue
        relative = name[len(root) :].lstrip("/")
        if relative and not accepts(relative):
            continue
        modified = info.get("LastModified")
        seconds = modified.astimezone(UTC).timestamp() if isinstance(modified, datetime) else info.get("mtime")
        version = str(info.get("ETag") or info.get("etag") or f"{info['size']}-{seconds}").strip('"')
        yield Source(f"{scheme}://{name}", name.encode(), int(info["size"]), seconds, version)


def _remote_walk(filesystem: fsspec.AbstractFileSystem, path: str) -> Iterator[dict[str, Any]]:
    if filesystem.isfile(path):
        yield filesystem.info(path)
        return
    if not filesystem.exists(path):
        raise FileNotFoundError(f"{path} does not exist or may not be listed")
    for _, _, files in filesystem.walk(path, detail=True):
        yield from (files[name] for name in sorted(files))
