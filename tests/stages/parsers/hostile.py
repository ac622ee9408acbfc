"""Parsers that misbehave, for the tests of the worker processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from stages.parsers.document import Document, Source


def parse(content: bytes, source: Source) -> Document:
    """Do what the content says; otherwise it is the text."""
    command, _, argument = content.decode().partition(":")
    match command:
        case "loop":
            while True:
                pass
        case "hang in C":  # holds the GIL, so no Python code in the process runs
            ctypes.PyDLL(None).pause()
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "eat":
            return Document(str(len(bytearray(int(argument) << 20))))
        case "raise":
            raise ValueError("no such thing \ud800")
        case "print":
            print("noise")
            os.write(1, b"noise")
            os.write(2, b"noise")
            sys.stderr.write("noise")
        case "sleep":
            time.sleep(float(argument))
        case "announce and hang":
            Path(argument).write_text(str(os.getpid()))
            ctypes.PyDLL(None).pause()
        case "unprintable":
            return Document("a\0b\ud800c", "t\ud800\0", {"key\ud800": ["\0"]})
        case "pid":
            return Document(str(os.getpid()))
        case "doubt":
            return Document("?", metadata={"suspect_text": True, "suspect_because": ["undecoded_characters"]})
        case "large":
            return Document("x" * int(argument))
    return Document(content.decode())
