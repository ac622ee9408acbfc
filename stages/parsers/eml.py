"""Mail: the body of a message (plain text before HTML) and of the messages attached to it; headers to metadata."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage, Message
from email.utils import parsedate_to_datetime

from stages.parsers.document import Document, Source, TextBuilder, described, one_line
from stages.parsers.html import append_page, tree
from stages.parsers.text import decode, plain

MAX_DEPTH = 10


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


def _add(message: Message, out: TextBuilder, attachments: list[str], depth: int) -> None:
    assert isinstance(message, EmailMessage)
    body = message.get_body(preferencelist=("plain", "html"))
    if body is not None:
        _add_body(body, out)
    for part in message.iter_attachments() if message.is_multipart() else ():
        if part.get_content_type() == "message/rfc822" and depth < MAX_DEPTH:
            for inner in part.iter_parts() if part.is_multipart() else ():
                out.heading(depth + 1, _header(inner, "subject"))
                _add(inner, out, attachments, depth + 1)
        elif name := part.get_filename():
            attachments.append(one_line(name))


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
    try:
        return one_line(str(message.get(name, "")))
    except (ValueError, IndexError, AttributeError, TypeError):  # the standard library's parser on broken headers
        return ""


def _date(message: Message) -> str | None:
    try:
        return parsedate_to_datetime(_header(message, "date")).isoformat()
    except (ValueError, TypeError, IndexError):
        return None
