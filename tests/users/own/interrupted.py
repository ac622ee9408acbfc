"""Runs a function in a process of its own that is killed just before its n-th step on files."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

STEPS = frozenset({"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.truncate"})
KILLED = 77


def interrupted(step: int, under: str, function: Callable[..., Any], *arguments: Any) -> bool:
    """Call `function`, and end its process without a word before step number `step` (from 1) on files under `under`.

    False where it took fewer steps than that and ended by itself. Python's own audit events tell the steps.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["stages.write_parquet", "pyarrow.parquet"])
    process = context.Process(target=_run, args=(step, under, function, arguments))
    process.start()
    process.join(60)
    assert process.exitcode in (0, KILLED), process.exitcode
    return process.exitcode == KILLED


def _run(step: int, under: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    left = step

    def watch(event: str, details: tuple[Any, ...]) -> None:
        nonlocal left
        if event in STEPS and str(details[0]).startswith(under):
            left -= 1
            if left == 0:
                os._exit(KILLED)

    sys.addaudithook(watch)
    function(*arguments)
