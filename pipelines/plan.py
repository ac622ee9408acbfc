"""What a run would do, told without starting Ray."""

from __future__ import annotations

from connectors.storage import Place
from pipelines import cluster
from pipelines.config import settings
from pipelines.pipeline import Pipeline
from pipelines.run import plan
from stages.checkpoint import Checkpoint
from stages.core.sink import Sink
from stages.core.stage import Stage


def describe(pipeline: Pipeline, run_dir: str | None) -> str:
    """The plan as text. Refuses demands that this machine cannot meet, unless a cluster is to be joined."""
    if not cluster.joins_cluster():
        cluster.check_demands(pipeline.stages, cluster.this_machine(), "this machine")
    lines = [f"pipeline {pipeline.name}"]
    todo = plan(pipeline, Place(run_dir)) if run_dir else None
    marks = {mark.position: (number, mark) for number, mark in enumerate(pipeline.marks)}
    position = 0
    for stage in pipeline.stages:
        if isinstance(stage, Checkpoint):
            continue
        lines.append(f"  {stage.label:<16}{_resources(stage)}{_settings(stage)}")
        if isinstance(stage, Sink):
            continue
        position += 1
        if position in marks:
            number, mark = marks[position]
            reuse = ""
            if todo:
                there = sum(1 for unit in todo.units if unit.id in todo.committed[number])
                reuse = f", {there} of {len(todo.units)} units are there"
            lines.append(f"    committed as {mark.directory}{reuse}")
    if todo:
        documents = sum(unit.sources.num_rows for unit in todo.units)
        lines.append(f"{documents} sources in {len(todo.units)} units; {todo.work.units} units to work on")
    return "\n".join(lines)


def _resources(stage: Stage) -> str:
    if isinstance(stage, Sink):
        return "the driver"
    parts = [f"{stage.num_cpus:g} CPU"]
    if stage.num_gpus:
        parts.append(f"{stage.num_gpus:g} GPU")
    if stage.memory:
        parts.append(stage.memory.human_readable())
    least, most = stage.actors()
    if stage.actor:
        parts.append(f"{least} actor{'s' if most > 1 else ''}" if least == most else f"{least} to {most} actors")
    else:
        parts.append("tasks")
    return ", ".join(parts)


def _settings(stage: Stage) -> str:
    fields = {key: value for key, value in settings(stage).items() if key not in ("storage_options", "name", "memory")}
    return "".join(f"\n      {key}: {value}" for key, value in fields.items())
