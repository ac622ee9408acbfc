"""EPUB: the XHTML of its spine, in order."""

from __future__ import annotations

import posixpath
import zipfile
from typing import Any
from urllib.parse import unquote

from stages.parsers.container import open_package, read, xml
from stages.parsers.document import Document, Refusal, Source, TextBuilder, described
from stages.parsers.html import append_page, tree

CONTAINER = "META-INF/container.xml"
ENCRYPTION = "META-INF/encryption.xml"
FONT_OBFUSCATION = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")


def parse(content: bytes, source: Source) -> Document:
    with open_package(content, source.options) as archive:
        names = set(archive.namelist())
        _refuse_rights_management(archive, names)
        root_file = next(xml(read(archive, CONTAINER)).iter("{*}rootfile"), None)
        path = root_file.get("full-path") if root_file is not None else None
        if not path or path not in names:
            raise Refusal("damaged", "the e-book does not name its package document")
        package = xml(read(archive, path))
        folder = posixpath.dirname(path)
        items = {item.get("id"): item.get("href", "") for item in package.iter("{*}item")}
        out = TextBuilder()
        for reference in package.iter("{*}itemref"):
            href = items.get(reference.get("idref"))
            part = posixpath.normpath(posixpath.join(folder, unquote(href))) if href else ""
            if part in names:
                append_page(out, tree(read(archive, part))[0])
    return out.document(
        _first(package, "title"),
        described(
            author=_first(package, "creator"),
            language=_first(package, "language"),
            publisher=_first(package, "publisher"),
        ),
    )


def _first(package: Any, name: str) -> str | None:
    found = (e.text for e in package.iter("{http://purl.org/dc/elements/1.1/}" + name) if e.text and e.text.strip())
    return next((" ".join(text.split()) for text in found), None)


def _refuse_rights_management(archive: zipfile.ZipFile, names: set[str]) -> None:
    if ENCRYPTION in names:
        methods = [e.get("Algorithm") for e in xml(read(archive, ENCRYPTION)).iter("{*}EncryptionMethod")]
        if any(method not in FONT_OBFUSCATION for method in methods):
            raise Refusal("password_required", "the e-book is encrypted (DRM)")
