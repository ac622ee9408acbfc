"""What a document is: its bytes decide first, its name second."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from stages.parsers.document import Drop, Refusal
from stages.parsers.text import decode_head

HEAD_BYTES = 4096

BY_NAME = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".mdx": "text/markdown",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".tab": "text/tab-separated-values",
    ".rst": "text/x-rst",
    ".rest": "text/x-rst",
    ".eml": "message/rfc822",
    ".htm": "text/html",
    ".html": "text/html",
    ".xhtml": "text/html",
    ".xml": "application/xml",
}
"""Extensions that tell text formats apart, which bytes alone cannot."""

BINARY_NAMES = frozenset(
    (
        ".pdf",
        ".docx",
        ".docm",
        ".dotx",
        ".pptx",
        ".pptm",
        ".potx",
        ".xlsx",
        ".xlsm",
        ".xltx",
        ".epub",
        ".odt",
        ".ods",
        ".odp",
        ".doc",
        ".xls",
        ".ppt",
        ".zip",
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".tif",
        ".tiff",
        ".webp",
    )
)
"""Extensions of files that are never text: text under such a name is an error page or a broken download."""

ARCHIVES = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\x28\xb5\x2f\xfd": "zstd",
}
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")

HTML = re.compile(
    r"\s*(?:<\?xml[^>]*\?>\s*)?(?:<!--(?>.*?-->)\s*)*+"
    r"<(?:!doctype\s+html|html|head|body|title|meta|table|div|p|h[1-6]|script|style|link)\b",
    re.IGNORECASE | re.DOTALL,
)
XML = re.compile(r"\s*<\?xml\s")
MAIL_HEADER = re.compile(
    r"(?:from|to|cc|subject|date|received|return-path|message-id|mime-version|delivered-to|reply-to|sender|"
    r"content-type|content-transfer-encoding|dkim-signature|x-[\w-]+):[ \t]",
    re.IGNORECASE,
)


def media_type(content: bytes, name: str) -> str:
    """The media type of `content`, which goes by `name` (a path or URI). Raises Refusal for what is no document."""
    suffix = _suffix(name)
    if not content:
        if suffix in BINARY_NAMES:
            raise Refusal("damaged", f"the file is empty (0 bytes), which no {suffix} file is; fetch it again")
        raise empty()
    return _by_signature(content, suffix) or _text_type(content, name, suffix)


def empty() -> Drop:
    return Drop("empty", "the document has no text")


def _suffix(name: str) -> str:
    return PurePosixPath(name.split("?")[0].split("#")[0].rstrip("/")).suffix.lower()


def _by_signature(content: bytes, suffix: str) -> str | None:
    start = content[:HEAD_BYTES]
    if b"%PDF-" in start[:1024] or (suffix == ".pdf" and b"%PDF-" in start):
        return "application/pdf"
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        from stages.parsers.container import package_type

        return package_type(content)
    if start.startswith(OLE):
        if ENCRYPTED_PACKAGE in content:
            raise Refusal("password_required", "the Office document is encrypted; save it without a password")
        raise Refusal("unsupported_type", "an old binary Office document (OLE); convert it to DOCX, PPTX or XLSX")
    if start.lstrip()[:5] == b"{\\rtf":
        return "application/rtf"
    for signature, kind in ARCHIVES.items():
        if start.startswith(signature):
            raise Refusal("archive", f"a {kind} archive; unpack it and read what is inside")
    if start[257:262] == b"ustar":
        raise Refusal("archive", "a tar archive; unpack it and read what is inside")
    return None


def _text_type(content: bytes, name: str, suffix: str) -> str:
    head = decode_head(content)
    if head is None:
        raise Refusal("unsupported_type", f"binary data that is no supported document{_guess(content)}")
    if suffix in BINARY_NAMES:
        kind = "an HTML page" if HTML.match(head) else "text"
        raise Refusal("type_mismatch", f"the name says {suffix}, the content is {kind}: often a failed download")
    if suffix in (".md", ".markdown", ".mdx"):  # Markdown may begin with a tag
        return BY_NAME[suffix]
    if HTML.match(head):
        return "text/html"
    if XML.match(head):
        return "text/html" if suffix in (".html", ".htm", ".xhtml") or "<html" in head else "application/xml"
    if name.lower().endswith((".rst.txt", ".rst.inc")):
        return "text/x-rst"
    if suffix in BY_NAME:
        return BY_NAME[suffix]
    if _is_mail(head):
        return "message/rfc822"
    return "text/plain"


def _is_mail(head: str) -> bool:
    lines = head.lstrip("\r\n").splitlines()
    if not lines or not MAIL_HEADER.match(lines[0]):
        return False
    block = lines[: next((i for i, line in enumerate(lines) if not line.strip()), len(lines))]
    names = {line.split(":")[0].lower() for line in block if MAIL_HEADER.match(line)}
    regular = all(line[0] in " \t" or re.match(r"[!-9;-~]+:", line) for line in block)
    return regular and len(names) >= 3 and "from" in names


def _guess(content: bytes) -> str:
    import puremagic

    try:
        guesses = puremagic.magic_string(content[:HEAD_BYTES])
    except puremagic.PureError:
        return ""
    return f" (looks like {guesses[0].name})" if guesses and guesses[0].name else ""
