"""Lists the sources of documents, lazily and without ever stopping at a bad one."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import fsspec
import pathspec

from connectors.storage import StorageError, open_uri, store_errors


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

    def __post_init__(self) -> None:
        for pattern in (*self.include, *self.exclude):
            try:
                pathspec.GitIgnoreSpec.from_lines([pattern])
            except ValueError as error:
                raise ValueError(f"{pattern!r} is no pattern of .gitignore") from error


class Filter:
    """A `Selection` at work on paths relative to where the listing began."""

    def __init__(self, selection: Selection) -> None:
        self._hidden = selection.hidden
        self._included = pathspec.GitIgnoreSpec.from_lines(selection.include) if selection.include else None
        self._excluded = pathspec.GitIgnoreSpec.from_lines(selection.exclude) if selection.exclude else None
        self._prunes = not any(pattern.startswith("!") for pattern in selection.exclude)

    def takes(self, file: str) -> bool:
        if self._veiled(file) or (self._included is not None and not self._included.match_file(file)):
            return False
        return self._excluded is None or not self._excluded.match_file(file)

    def enters(self, folder: str) -> bool:
        """False where nothing below the folder could be taken."""
        if self._veiled(folder):
            return False
        return self._excluded is None or not self._prunes or not self._excluded.match_file(f"{folder}/")

    def _veiled(self, path: str) -> bool:
        return not self._hidden and any(part.startswith(".") for part in path.split("/"))


def list_sources(uris: Iterable[str], selection: Selection, options: dict[str, Any]) -> Iterator[Source]:
    """Each file under each of `uris` once, in a stable order, under the first name that leads to it.

    Raises FileNotFoundError where a URI names nothing, StorageError where its store cannot be reached.
    """
    seen: set[bytes] = set()
    for uri in uris:
        remote = is_remote(uri)
        for source in _remote(uri, selection, options) if remote else _local(local_path(uri), selection):
            identity = hashlib.blake2b(source.path, digest_size=16, salt=b"remote" if remote else b"").digest()
            if identity not in seen:
                seen.add(identity)
                yield source


def lists_below(uri: str, selection: Selection, place: str) -> bool:
    """Whether listing the folder `uri` would go into the folder `place`."""
    if is_remote(uri) != is_remote(place) or glob.has_magic(uri):
        return False
    if is_remote(uri):
        root, inside = uri.rstrip("/"), place.rstrip("/")
    else:
        root, inside = (os.path.realpath(local_path(path)) for path in (uri, place))
    if inside == root:
        return True
    relative = inside.removeprefix(f"{root.rstrip('/')}/")
    return relative != inside and Filter(selection).enters(relative)


def is_remote(uri: str) -> bool:
    return "://" in uri and not uri.startswith("file://")


def local_path(uri: str) -> str:
    return os.path.expanduser(uri.removeprefix("file://"))


def _local(root: str, selection: Selection) -> Iterator[Source]:
    chosen = Filter(selection)
    if os.path.lexists(root):
        root = os.path.normpath(root)
        # A file that is named outright is taken, whatever the patterns say.
        yield from _walk(root, root, chosen) if os.path.isdir(root) else [_local_file(root)]
        return
    if not glob.has_magic(root):
        try:
            os.lstat(root)
        except PermissionError as error:
            raise StorageError(f"{root} may not be looked at: {error.strerror}") from error
        except OSError as error:
            raise FileNotFoundError(f"{root} does not exist") from error
    base = _above_glob(root) or "."
    for found in sorted(glob.iglob(root, recursive=True, include_hidden=selection.hidden)):
        found = os.path.normpath(found)
        relative = printable_path(os.path.relpath(found, base))
        if os.path.isdir(found):
            if relative == "." or chosen.enters(relative):
                yield from _walk(found, base, chosen)
        elif chosen.takes(relative):
            yield _local_file(found)


def _above_glob(path: str) -> str:
    """The folder that a glob begins in: all that stands before its first pattern."""
    parts = path.split("/")
    magic = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return "/".join(parts[:magic]) or ("/" if path.startswith("/") else "")


def _walk(top: str, base: str, chosen: Filter) -> Iterator[Source]:
    """The files of a folder, then those of each folder in it. Not by recursion: folders may nest deeper than calls."""
    todo: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(top, os.path.relpath(top, base), ())]
    while todo:
        directory, inside, above = todo.pop()
        try:
            status = os.stat(directory)
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            yield _unlisted(directory, error)
            continue
        inode = (status.st_dev, status.st_ino)
        if inode in above:
            # Only a link back to a folder above is a loop; a second link to the same folder elsewhere is not.
            yield replace(_named(directory), reason="symlink_loop", message="the link leads back to a folder above it")
            continue
        folders = []
        for entry in entries:
            relative = entry.name if inside == "." else f"{inside}/{entry.name}"
            if _is_dir(entry):
                if chosen.enters(printable_path(relative)):
                    folders.append((entry.path, relative, (*above, inode)))
            elif chosen.takes(printable_path(relative)):
                yield _local_file(entry.path)
        todo += reversed(folders)


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
    reason = "unreadable"
    if error.errno == errno.ELOOP:
        reason = "symlink_loop"
    elif error.errno == errno.ENOENT:
        reason = "broken_link" if os.path.islink(path) else "vanished"
    return replace(_named(path), reason=reason, message=error.strerror or str(error))


# What a percent sign must not be followed by in a name as it is, lest it read as an escape.
AMBIGUOUS = re.compile("%(?=25|[89A-F][0-9A-F])")
UNDECODED = re.compile("[\udc80-\udcff]")


def printable_path(path: str) -> str:
    """`path` as text: a byte that is not UTF-8 (a surrogate in Python's file names) becomes %XX. No two paths give the
    same text: a name that has such a %XX of its own, or a %25, gets the percent sign as %25."""
    return UNDECODED.sub(lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", AMBIGUOUS.sub("%25", path))


def _remote(uri: str, selection: Selection, options: dict[str, Any]) -> Iterator[Source]:
    filesystem, path = open_uri(uri, options)
    scheme = uri.split("://", 1)[0]
    chosen = Filter(selection)
    with store_errors():
        if glob.has_magic(path) and not filesystem.exists(path):
            found: Iterable[dict[str, Any]] = filesystem.glob(path, detail=True).values()
            root = _above_glob(path)
        else:
            found, root = _remote_walk(filesystem, path), path
        for info in found:
            name = str(info["name"])
            if info["type"] != "file" or name.endswith("/"):
                continue
            relative = name[len(root) :].lstrip("/")
            if relative and not chosen.takes(relative):
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
