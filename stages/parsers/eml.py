"""Mail: the body of a message (plain text before HTML) and of the messages attached to it; headers to metadata."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage, Message
from email.utils import parsedate_to_datetime

from stages.parsers.document import Document, Source, TextBuilder, described, one_line
from stages.parsers.html import append_page, tree
from stages.parsers.text import decode, plain

MAX_DEPTH = 10
MAX_HEADER = 1 << 14
"""Characters of a header that are read: addresses take the standard library a time that grows with their square."""


def parse(content: bytes, source: Source) -> Document:
    message = message_from_bytes(content, policy=policy.default)
    out = TextBuilder()
    attachments: list[str] = []
    _add(message, out, attachments, 0)
    metadata = described(
        **{name: _header(message, name) for name in ("from", "to", "cc")},
        date=_date(message),
        attachments=attachments,
    )
    return out.document(_header(message, "subject") or None, metadata)


def _add(part: Message, out: TextBuilder, attachments: list[str], depth: int) -> None:
    """Append what a part shows: of alternatives the plain one, of mixed parts all, of the rest the name."""
    kind = part.get_content_type()
    if part.is_multipart() and depth < MAX_DEPTH:
        inner = [p for p in part.get_payload() if isinstance(p, Message)]
        if kind == "message/rfc822":
            for message in inner:
                out.heading(depth + 1, _header(message, "subject"))
                _add(message, out, attachments, depth + 1)
        elif kind == "multipart/alternative":
            body = part.get_body(("plain", "html")) if isinstance(part, EmailMessage) else None
            if body is not None:
                _add_body(body, out)
            inner = [p for p in inner if not p.get_content_type().startswith(("text/", "multipart/"))]
        if kind != "message/rfc822":
            for each in inner:
                _add(each, out, attachments, depth)
    elif kind in ("text/plain", "text/html") and part.get_content_disposition() != "attachment" and not _name(part):
        _add_body(part, out)
    elif name := _name(part):
        attachments.append(name)


def _name(part: Message) -> str:
    try:
        return one_line(part.get_filename())
    except (ValueError, IndexError, AttributeError, TypeError):  # the standard library's parser on broken headers
        return ""


def _add_body(body: Message, out: TextBuilder) -> None:
    payload = body.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return
    charset = body.get_content_charset()
    if body.get_content_type() == "text/html":
        append_page(out, tree(payload, charset)[0])
    else:
        out.block(plain(decode(payload, charset)[0]).strip())


def _header(message: Message, name: str) -> str:
    raw = next((value for key, value in message.raw_items() if key.lower() == name), "")
    try:
        return one_line(str(policy.default.header_fetch_parse(name, raw[:MAX_HEADER])))
    except (ValueError, IndexError, AttributeError, TypeError):  # the standard library's parser on broken headers
        return ""


def _date(message: Message) -> str | None:
    try:
        return parsedate_to_datetime(_header(message, "date")).isoformat()
    except (ValueError, TypeError, IndexError):
        return None
