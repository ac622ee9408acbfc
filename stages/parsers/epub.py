"""EPUB: the XHTML of its spine, in order."""

from __future__ import annotations

import posixpath
import zipfile
from typing import Any
from urllib.parse import unquote

from stages.parsers.container import open_package, read, xml
from stages.parsers.document import Document, Refusal, Source, TextBuilder, described, one_line
from stages.parsers.html import append_page, tree

CONTAINER = "META-INF/container.xml"
NCX = "application/x-dtbncx+xml"
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
        items = {
            item.get("id"): item.get("href", "")
            for item in package.iter("{*}item")
            if "nav" not in item.get("properties", "").split()  # the table of contents repeats the headings
        }
        titles = _titles(archive, folder, package)
        out = TextBuilder()
        for identity in dict.fromkeys(reference.get("idref") for reference in package.iter("{*}itemref")):
            href = items.get(identity)
            part = posixpath.normpath(posixpath.join(folder, unquote(href))) if href else ""
            if part in names:
                page = tree(read(archive, part))[0]
                if part in titles and not page.xpath("//h1|//h2|//h3|//h4|//h5|//h6"):
                    out.heading(1, titles[part])
                append_page(out, page)
    return out.document(
        _first(package, "title"),
        described(
            author=_first(package, "creator"),
            language=_first(package, "language"),
            publisher=_first(package, "publisher"),
        ),
    )


def _titles(archive: zipfile.ZipFile, folder: str, package: Any) -> dict[str, str]:
    """Part -> its first title in the table of contents (NCX)."""
    found: dict[str, str] = {}
    for item in package.iter("{*}item"):
        part = posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
        if item.get("media-type") != NCX or part not in archive.namelist():
            continue
        for point in xml(read(archive, part)).iter("{*}navPoint"):
            label, target = point.find("{*}navLabel/{*}text"), point.find("{*}content")
            if label is not None and target is not None:
                href = unquote(target.get("src", "").partition("#")[0])
                page = posixpath.normpath(posixpath.join(posixpath.dirname(part), href))
                found.setdefault(page, one_line(label.text))
    return found


def _first(package: Any, name: str) -> str | None:
    found = (e.text for e in package.iter("{http://purl.org/dc/elements/1.1/}" + name) if e.text and e.text.strip())
    return next((" ".join(text.split()) for text in found), None)


def _refuse_rights_management(archive: zipfile.ZipFile, names: set[str]) -> None:
    if ENCRYPTION in names:
        methods = [e.get("Algorithm") for e in xml(read(archive, ENCRYPTION)).iter("{*}EncryptionMethod")]
        if any(method not in FONT_OBFUSCATION for method in methods):
            raise Refusal("password_required", "the e-book is encrypted (DRM)")
