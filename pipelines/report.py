"""What a run did, as a self-contained page and on a terminal."""

from __future__ import annotations

import json
from typing import Any

from connectors.storage import Place
from pipelines import outcomes
from pipelines.pipeline import Pipeline
from stages.core.block import Count
from stages.core.errors import ConfigError

EXAMPLES = 200


def render(pipeline: Pipeline, record: dict[str, Any], run_dir: Place) -> str:
    """The report as HTML: one file, no network."""
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("pipelines", "."), autoescape=True)
    lost = outcomes.read(run_dir)
    return environment.get_template("report.html").render(
        record=record,
        config=pipeline.to_yaml(),
        ledger=[Count(**entry) for entry in record["ledger"]],
        examples=lost.slice(0, EXAMPLES).to_pylist(),
        n_lost=lost.num_rows,
        run_dir=run_dir.uri,
    )


def load(run_dir: Place) -> dict[str, Any]:
    """run.json. Raises ConfigError where the directory holds no run."""
    content = run_dir.read_or_none("run.json")
    if content is None:
        raise ConfigError("RUN_DIR", f"{run_dir.uri} holds no run")
    return dict(json.loads(content))


def show(run_dir: str) -> None:
    """Print a run's ledger, its outcomes by reason, and where the report is."""
    from rich.console import Console
    from rich.table import Table

    from pipelines.progress import summary

    record = load(Place(run_dir))
    console = Console()
    console.print(f"{record['pipeline']}: {record['status']}, started {record['started_at']}", highlight=False)
    if record.get("error") or record.get("message"):
        console.print(record.get("error") or record["message"], highlight=False, markup=False)
    if "ledger" not in record:
        return
    console.print(summary([Count(**entry) for entry in record["ledger"]]))
    if record["outcomes"]:
        reasons = Table("stage", "status", "reason")
        reasons.add_column("rows", justify="right")
        for row in record["outcomes"]:
            reasons.add_row(row["stage"], row["status"], row["reason"], str(row["rows"]))
        console.print(reasons)
    console.print(f"report: {run_dir.rstrip('/')}/report.html", highlight=False)


def show_outcomes(run_dir: str, status: str | None, reason: str | None, limit: int) -> None:
    """Print the rows that did not come through, one line each."""
    import click
    import pyarrow.compute as pc

    place = Place(run_dir)
    load(place)
    table = outcomes.read(place, status)
    if reason:
        table = table.filter(pc.equal(table["reason"], reason))
    shown = table.slice(0, limit) if limit else table
    for row in shown.to_pylist():
        chunk = f" chunk {row['chunk_id']}" if row["chunk_id"] else ""
        click.echo(f"{row['status']:<8}{row['stage']}: {row['reason']}  {row['uri']}{chunk}  {row['message']}")
    if shown.num_rows < table.num_rows:
        click.echo(f"... and {table.num_rows - shown.num_rows} more (--limit 0 shows all)")
