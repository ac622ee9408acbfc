"""Documents that are zip files: what kind they are, and whether they are safe to unpack."""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from typing import IO, Any
from urllib.parse import unquote
from xml.parsers import expat

from stages.parsers.document import Options, Refusal
from stages.parsers.registry import DOCX, PPTX, XLSX

MAX_MEMBERS = 50_000
SMALL_BYTES = 1 << 20
"""Members below this size are no bomb, whatever their ratio."""

RELATIONSHIPS = "_rels/.rels"
OFFICE_DOCUMENT = "/officeDocument"

READ_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, KeyError, ValueError)


def package_type(content: bytes) -> str:
    """The media type of a zip file that is a document. Raises Refusal for other archives and broken ones."""
    with _open(content) as archive:
        names = set(archive.namelist())
        if "META-INF/container.xml" in names:
            return "application/epub+zip"
        if "mimetype" in names:
            kind = archive.open("mimetype").read(100).decode("ascii", "replace").strip()
            if kind == "application/epub+zip":
                return kind
            raise Refusal("unsupported_type", f"there is no parser for {kind}; convert it to DOCX, XLSX, PPTX or PDF")
    for part, kind in (("word/document.xml", DOCX), ("ppt/presentation.xml", PPTX), ("xl/workbook.xml", XLSX)):
        if part in names:
            return kind
    if "[Content_Types].xml" in names and RELATIONSHIPS in names:
        # The main part may go by any name; its folder says which application wrote it.
        for folder, kind in (("word/", DOCX), ("ppt/", PPTX), ("xl/", XLSX)):
            if any(name.startswith(folder) and name.endswith(".xml") for name in names):
                return kind
    raise Refusal("archive", "a zip archive and no document; unpack it and read what is inside")


def open_package(content: bytes, options: Options) -> zipfile.ZipFile:
    """Open a zip document once it is known that unpacking it is bounded and that its XML expands nothing.

    Raises Refusal: `bomb`, `xml_entities`, `password_required`, `damaged`. A member never yields more than the size
    that its entry declares, so the declared sizes are a true bound.
    """
    archive = _open(content)
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise Refusal("bomb", f"the document holds {len(members)} parts (at most {MAX_MEMBERS})")
    total = sum(member.file_size for member in members)
    if total > options.max_expanded_bytes:
        raise Refusal("bomb", f"the document unpacks to {total} bytes (max_expanded is {options.max_expanded_bytes})")
    for member in members:
        if member.flag_bits & 1:
            raise Refusal("password_required", "the document's parts are encrypted")
        if member.file_size > SMALL_BYTES and member.file_size > options.max_ratio * max(member.compress_size, 1):
            raise Refusal(
                "bomb",
                f"{member.filename} unpacks to {member.file_size // max(member.compress_size, 1)} times its size",
            )
    for member in members:
        if member.filename.endswith((".xml", ".rels", ".opf", ".ncx", ".xhtml")):
            try:
                with archive.open(member) as part:
                    refuse_entities(part)
            except READ_ERRORS as error:
                raise damaged(error) from error
    return archive


def read(archive: zipfile.ZipFile, name: str) -> bytes:
    """A part's bytes. Raises Refusal (`damaged`) where it is missing or broken."""
    try:
        return archive.read(name)
    except READ_ERRORS as error:
        raise damaged(error) from error


def damaged(error: BaseException) -> Refusal:
    return Refusal("damaged", f"the file is damaged or cut off: {error}")


def refuse_entities(part: IO[bytes]) -> None:
    """Raise Refusal (`xml_entities`) if the prolog of an XML part declares an entity; read no further than that."""
    parser = expat.ParserCreate()
    done = False

    def declared(*_: Any) -> None:
        raise Refusal("xml_entities", "the document's XML declares entities, which can blow up or read other files")

    def began(*_: Any) -> None:
        nonlocal done
        done = True

    parser.EntityDeclHandler = declared
    parser.StartElementHandler = began
    while not done and (data := part.read(1 << 14)):
        try:
            parser.Parse(data, False)
        except expat.ExpatError:
            return  # not well-formed: whoever reads the part says so


def relationships(archive: zipfile.ZipFile, part: str) -> dict[str, tuple[str, str]]:
    """Relationship id -> (type, target part) of an Office part; '' for the package. External targets are left out."""
    from lxml import etree

    folder, name = posixpath.split(part)
    path = posixpath.join(folder, "_rels", f"{name}.rels")
    if path not in archive.namelist():
        return {}
    found = {}
    for element in xml(read(archive, path)).iter(etree.Element):
        target = element.get("Target")
        if target and element.get("TargetMode") != "External":
            full = target.lstrip("/") if target.startswith("/") else posixpath.normpath(posixpath.join(folder, target))
            found[element.get("Id", "")] = (element.get("Type", ""), unquote(full))
    return found


def xml(content: bytes) -> Any:
    """The root element of an XML part; resolves no entity and no network address. Raises Refusal (`damaged`)."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True, recover=True)
    try:
        root = etree.fromstring(content, parser)
    except etree.XMLSyntaxError as error:
        raise damaged(error) from error
    if root is None:
        raise Refusal("damaged", "a part of the document is no XML")
    return root


def core_properties(archive: zipfile.ZipFile) -> dict[str, str]:
    """Title, author and the like from an Office package."""
    if "docProps/core.xml" not in archive.namelist():
        return {}
    values = {}
    for element in xml(read(archive, "docProps/core.xml")).iter("{*}*"):
        name = element.tag.rpartition("}")[2]
        if element.text and name in ("title", "creator", "subject", "keywords", "description", "language", "created"):
            values["author" if name == "creator" else name] = " ".join(element.text.split())
    return values


def _open(content: bytes) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(content))
    except READ_ERRORS as error:
        raise damaged(error) from error
