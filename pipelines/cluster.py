"""Connects to Ray, quietly, and refuses what the cluster could never run."""

from __future__ import annotations

import contextlib
import glob
import itertools
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from pydantic import ByteSize

from stages.core.errors import ConfigError
from stages.core.stage import Stage

ROUNDING = 1e-6
"""Fractions of a CPU do not add up exactly."""


@dataclass(frozen=True)
class Resources:
    """What a cluster has in all, and what its largest node has."""

    cpus: float
    gpus: float
    node_cpus: float
    node_gpus: float
    node_memory: float = math.inf
    """Bytes."""


def this_machine() -> Resources:
    """What Ray will find when it starts here. Looks at the machine alone: importing Ray takes seconds."""
    # Not every system lets a process be held to some of the CPUs.
    cpus = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    # CUDA takes what stands before the first device that does not exist, by custom -1.
    named = itertools.takewhile(lambda v: v.strip() not in ("", "-1", "NoDevFiles"), (visible or "").split(","))
    gpus = float(len(glob.glob("/dev/nvidia[0-9]*")) if visible is None else len(list(named)))
    return Resources(cpus, gpus, cpus, gpus, float(psutil.virtual_memory().total))


def joins_cluster() -> bool:
    """Whether a run joins a cluster that is there (a submitted job, RAY_ADDRESS), instead of starting its own."""
    return bool(os.environ.get("RAY_ADDRESS"))


def check_demands(stages: Sequence[Stage], has: Resources, where: str) -> None:
    """Refuse demands that would hang for ever. Raises ConfigError with the figures and the field to change.

    Actors hold their CPUs as long as the run lasts, so that the largest task must fit beside all of them.
    """
    for stage in stages:
        if stage.num_gpus > has.node_gpus:
            raise ConfigError(
                f"{stage.label}.num_gpus", f"asks for {stage.num_gpus:g} GPUs on a node; {where} has {has.node_gpus:g}"
            )
        if stage.num_cpus > has.node_cpus:
            raise ConfigError(
                f"{stage.label}.num_cpus", f"asks for {stage.num_cpus:g} CPUs on a node; {where} has {has.node_cpus:g}"
            )
        if stage.memory and stage.memory > has.node_memory:
            raise ConfigError(
                f"{stage.label}.memory",
                f"asks for {stage.memory.human_readable()} on a node; {where} has "
                f"{ByteSize(has.node_memory).human_readable()} to give",
            )
    actors = [stage for stage in stages if stage.actor]
    tasks = [stage for stage in stages if not stage.actor]
    if not actors:
        return
    for unit, total, wants in (("CPUs", has.cpus, "num_cpus"), ("GPUs", has.gpus, "num_gpus")):
        held = sum(stage.actors()[0] * getattr(stage, wants) for stage in actors)
        task = max((getattr(stage, wants) for stage in tasks), default=0.0)
        # Committing and reading back are tasks of one CPU.
        task = max(task, 1.0) if unit == "CPUs" else task
        if held + task > total + ROUNDING:
            greedy = max(actors, key=lambda stage: stage.actors()[0] * getattr(stage, wants))
            raise ConfigError(
                f"{greedy.label}.concurrency",
                f"the actors hold {held:g} {unit} and the tasks that feed them need {task:g} more, but {where} has "
                f"{total:g}: lower concurrency or {wants}",
            )


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Keep what native code prints to standard error off the terminal: Ray greets there. Errors are raised as ever."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def connect(quiet: bool = True) -> Resources:
    """Join the cluster of RAY_ADDRESS or start Ray on this machine. Gives the resources of all nodes."""
    import ray
    from ray.data import DataContext

    if not ray.is_initialized():
        if quiet:
            os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False} if quiet else {}
        if not joins_cluster():
            options |= {"address": "local", "include_dashboard": False, "num_cpus": int(this_machine().cpus)}
        with silenced() if quiet else contextlib.nullcontext():
            ray.init(**options)
    context = DataContext.get_current()
    # A unit is a block from end to end: nothing may split it, nothing may be joined to it.
    context.target_max_block_size = None
    # A large document may take its time; hangs are what timeouts of stages are for.
    context.execution_no_progress_timeout_s = -1
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    if quiet:
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its errors are raised as well
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = [node.get("CPU", 0.0) for node in nodes], [node.get("GPU", 0.0) for node in nodes]
    memory = max((node.get("memory", 0.0) for node in nodes), default=0.0)
    return Resources(sum(cpus), sum(gpus), max(cpus, default=0.0), max(gpus, default=0.0), memory)
