"""Runs a function again and again, each time in a process that is killed just before its next step on files."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from typing import Any

STEPS = frozenset({"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.truncate"})
KILLED = 77


def at_every_step(function: Callable[[str], Any], prepare: Callable[[str], Any] | None = None) -> list[str]:
    """Call `function` with the names of folders below the working directory, one call a process. The n-th process ends
    without a word before its n-th step on files under its folder, as Python's own audit events tell them; the last one
    took fewer and ended by itself. `prepare` is called with each folder before. Returns the folders' names."""
    # A process of its own does it, since forking one with threads is a gamble.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_at_every_step, function, prepare).result()


def _at_every_step(function: Callable[[str], Any], prepare: Callable[[str], Any] | None) -> list[str]:
    folders: list[str] = []
    function("undisturbed")  # so that what it imports is not imported by every process again
    for step in count(1):
        folders.append(f"out{step}")
        if prepare:
            prepare(folders[-1])
        child = os.fork()
        if child == 0:
            _watch(step, os.path.abspath(folders[-1]))
            function(folders[-1])
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            break
        assert status == KILLED, status
    return folders


def _watch(step: int, under: str) -> None:
    left = step

    def watch(event: str, details: tuple[Any, ...]) -> None:
        nonlocal left
        if event in STEPS and str(details[0]).startswith(under):
            left -= 1
            if left == 0:
                os._exit(KILLED)

    sys.addaudithook(watch)
