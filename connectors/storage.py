"""Storage URIs: local paths and object stores behind fsspec, with commits that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

TEMPORARY = re.compile(r"(\..+|_[0-9a-f]{16}\.parquet)\.tmp")


class StorageError(OSError):
    """A store that cannot be used: of an unknown kind, or out of reach."""


@dataclass(frozen=True)
class Place:
    """A directory at a storage URI. `options` go to fsspec (`endpoint_url`, `key`, `secret`, ... for S3).

    Pickles by URI, so that tasks on other machines open it themselves; a relative path is made absolute at once, since
    tasks have a working directory of their own.
    """

    uri: str
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if "://" not in self.uri:
            object.__setattr__(self, "uri", os.path.abspath(os.path.expanduser(self.uri)))

    def _open(self) -> tuple[fsspec.AbstractFileSystem, str]:
        filesystem, path = open_uri(self.uri, dict(self.options))
        return filesystem, path.rstrip("/")

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        return self._open()[0]

    @property
    def root(self) -> str:
        return self._open()[1]

    @property
    def local(self) -> bool:
        return isinstance(self.fs, LocalFileSystem)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def child(self, name: str) -> Place:
        return Place(f"{self.uri.rstrip('/')}/{name}", self.options)

    def names(self, suffix: str = "") -> list[str]:
        """The committed files directly in this directory, sorted; none where it does not exist."""
        return sorted(n for n in self._listed() if n.endswith(suffix) and not n.startswith((".", "_")))

    def _listed(self) -> list[str]:
        fs, root = self._open()
        try:
            found = fs.ls(root, detail=False, refresh=True) if not self.local else os.listdir(root)
        except FileNotFoundError:
            return []
        # Some stores list an empty name: the marker of the directory itself.
        return [name for path in found if (name := str(path).rsplit("/", 1)[-1])]

    def leftovers(self) -> list[str]:
        """Temporary files of writers that were killed; those of writers still at work look the same."""
        return sorted(name for name in self._listed() if TEMPORARY.fullmatch(name))

    def exists(self, name: str) -> bool:
        fs, root = self._open()
        return os.path.exists(f"{root}/{name}") if self.local else bool(fs.exists(f"{root}/{name}"))

    def read(self, name: str) -> bytes:
        return bytes(self.fs.cat_file(self.path(name)))

    def read_or_none(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def commit(self, name: str, content: bytes | memoryview, *, once: bool = False) -> bool:
        """Make `name` hold `content`, whole or not at all, whatever is killed meanwhile.

        With `once`, a name that is there stays as it is, and the answer is False. A local file is on the disk when
        this returns.
        """
        if not self.local:
            if once and self.exists(name):
                return False
            # One PUT (or one completed multipart upload) shows whole or not at all.
            self.fs.pipe_file(self.path(name), bytes(content))
            return True
        final = self.path(name)
        directory = os.path.dirname(final)
        os.makedirs(directory, exist_ok=True)
        temporary = f"{directory}/.{os.path.basename(final)}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if once:
                try:
                    os.link(temporary, final)
                except FileExistsError:
                    return False
                except OSError:  # a filesystem without hard links
                    os.replace(temporary, final)
            else:
                os.replace(temporary, final)
            _sync(directory)
            return True
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def update(self, name: str, content: bytes | memoryview) -> None:
        """`commit`, unless `name` holds just that already."""
        if self.read_or_none(name) != content:
            self.commit(name, content)

    def rename(self, temporary: str, name: str) -> None:
        """Give a finished file its name. On an object store that is a copy within the store, whole or not there."""
        if self.local:
            with open(self.path(temporary), "rb") as file:
                os.fsync(file.fileno())
            os.replace(self.path(temporary), self.path(name))
            _sync(self.root)
        else:
            self.fs.mv(self.path(temporary), self.path(name))

    def remove(self, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(self.path(name))

    def writable(self) -> str | None:
        """Why nothing can be written here, or None. Leaves nothing behind."""
        probe = f".batchmill-probe-{uuid.uuid4().hex[:8]}.tmp"
        try:
            local = self.local
            if not local:
                with store_errors():
                    self.fs.pipe_file(self.path(probe), b"")
                    self.fs.rm_file(self.path(probe))
        except (OSError, ValueError) as error:
            return str(error) or type(error).__name__
        if not local:
            return None
        parent = self.root
        while not os.path.lexists(parent):
            parent = os.path.dirname(parent) or "/"
        if not os.path.isdir(parent):
            return f"{parent} is not a directory"
        try:
            with open(f"{parent}/{probe}", "wb"):
                pass
            os.unlink(f"{parent}/{probe}")
        except OSError as error:
            return f"{parent}: {error.strerror}"
        return None


def open_uri(uri: str, options: dict[str, Any]) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem that a URI or local path is on, and its path there. Raises StorageError for an unknown kind."""
    if "://" not in uri:
        return LocalFileSystem(), uri  # as it is: fsspec would read `::` in it as a chain of filesystems
    try:
        filesystem, path = fsspec.core.url_to_fs(uri, **storage_options(uri, options))
    except (ValueError, ImportError) as error:
        raise StorageError(str(error)) from error
    return filesystem, path


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Raises what a store's client raises (no credentials, no answer) as StorageError: to Python it is no OSError."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] in ("botocore", "aiobotocore", "aiohttp"):
            raise StorageError(str(error) or type(error).__name__) from error
        raise


def _sync(directory: str) -> None:
    """Put a directory's entries on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def storage_options(uri: str, options: dict[str, Any]) -> dict[str, Any]:
    """What fsspec needs beside the URI. Credentials come from the usual AWS variables unless `options` has them."""
    if uri.startswith(("s3://", "s3a://")):
        # The listing cache would hide files that another process commits.
        return {"use_listings_cache": False, "skip_instance_cache": False, **options}
    return options
