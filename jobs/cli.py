"""The command `batchmill`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pipelines.pipeline import Pipeline

DONE, FAILED, WRONG = 0, 1, 2


class Command(click.Group):
    """Turns the errors that reach a person into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        from stages.core.errors import ConfigError, RunError

        try:
            return super().invoke(ctx)
        except ConfigError as error:
            click.echo(f"configuration: {error}", err=True)
            ctx.exit(WRONG)
        except RunError as error:
            click.echo(f"failed: {error}", err=True)
            ctx.exit(FAILED)


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="batchmill")
def main() -> None:
    """Turn piles of documents into datasets.

    Exit codes: 0 done, 1 the run failed or passed max_failed, 2 the configuration is wrong.
    """
    _find_stages_here()


def _find_stages_here() -> None:
    """Let stages of one's own be found where the command is given, here and in the worker processes alike.

    Not where folders there would stand before our own packages of the same name.
    """
    here = os.getcwd()
    if here in sys.path or any(os.path.isdir(name) for name in ("stages", "pipelines", "connectors", "jobs")):
        return
    sys.path.append(here)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))


def pipeline_arguments(command: Any) -> Any:
    command = click.option(
        "--set", "overrides", multiple=True, metavar="STAGE.FIELD=VALUE", help="Change a field; may be repeated."
    )(command)
    return click.argument("file", type=click.Path(path_type=Path))(command)


def _load(file: Path, overrides: tuple[str, ...]) -> Pipeline:
    from pipelines.pipeline import Pipeline

    return Pipeline.from_yaml(file, overrides)


@main.command()
@pipeline_arguments
@click.option("--run-dir", required=True, help="Where the run keeps its work: a path or s3:// URI.")
@click.option("--retry-failed", is_flag=True, help="Work again on the documents that failed before.")
@click.option("--verbose", is_flag=True, help="Show what Ray and the workers print.")
def run(file: Path, overrides: tuple[str, ...], run_dir: str, retry_failed: bool, verbose: bool) -> None:
    """Run the pipeline in FILE, or go on where an earlier run of this directory ended."""
    from rich.console import Console

    from pipelines.progress import summary
    from pipelines.run import REPORT_FILE
    from pipelines.run import run as execute

    result = execute(_load(file, overrides), run_dir, retry_failed=retry_failed, quiet=not verbose)
    if result.status == "nothing_to_do":
        click.echo("Nothing to do: every document is as it was, and the outputs are up to date.")
    Console().print(summary(result.ledger))
    for sink, output in result.outputs.items():
        click.echo(f"{sink}: {output['rows']} rows")
    click.echo(f"report: {run_dir.rstrip('/')}/{REPORT_FILE}")
    if result.message:
        click.echo(result.message, err=True)
    raise SystemExit(result.exit_code)


@main.command()
@pipeline_arguments
@click.option("--run-dir", help="Also tell what of this run directory would be reused.")
def plan(file: Path, overrides: tuple[str, ...], run_dir: str | None) -> None:
    """Validate the pipeline in FILE and show its stages, resources, fingerprints and what would be reused."""
    from pipelines.plan import describe

    pipeline = _load(file, overrides)
    pipeline.check(run_dir)
    click.echo(describe(pipeline, run_dir))


@main.command()
@click.argument("run_dir")
def report(run_dir: str) -> None:
    """Show what a run did, stage by stage, and where its HTML report is."""
    from pipelines.report import show

    show(run_dir)


@main.command()
@click.argument("run_dir")
@click.option("--status", type=click.Choice(["failed", "dropped"]), help="Only these.")
@click.option("--reason", help="Only this reason, such as damaged.")
@click.option("--limit", type=click.IntRange(0), default=50, show_default=True, help="Rows to show; 0 shows all.")
def outcomes(run_dir: str, status: str | None, reason: str | None, limit: int) -> None:
    """List the rows that did not come through, with the reason for each."""
    from pipelines.report import show_outcomes

    show_outcomes(run_dir, status, reason, limit)


@main.command()
@click.option("--uri", required=True, help="The LanceDB directory.")
@click.option("--table", required=True, help="The table's name.")
@click.option("--mode", type=click.Choice(["hybrid", "vector", "fulltext"]), default="hybrid", show_default=True)
@click.option("-k", "--limit", type=click.IntRange(1), default=5, show_default=True, help="Results to show.")
@click.option("--model", help="The embedding model; the table's own by default, another one is refused.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per result.")
@click.argument("question")
def search(uri: str, table: str, mode: Any, limit: int, model: str | None, as_json: bool, question: str) -> None:
    """Search a table for QUESTION."""
    import json

    from pipelines.search import search as find

    for number, hit in enumerate(find(uri, table, question, mode=mode, k=limit, model=model), 1):
        if as_json:
            click.echo(json.dumps(hit, ensure_ascii=False, default=str))
            continue
        place = " > ".join(hit.get("heading_path") or [])
        page = f", page {hit['page_first']}" if hit.get("page_first") else ""
        click.echo(f"{number}. {hit['uri']}{page}{f' ({place})' if place else ''}  [{hit['score']:.3f}]")
        click.echo("   " + " ".join(hit["text"].split())[:300])


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--host", help="Where to listen; this machine alone by default.")
@click.option("--port", type=click.IntRange(1, 65535))
@click.option("--insecure", is_flag=True, help="Listen elsewhere without API keys.")
@click.option("--config", is_flag=True, help="Print what `serve deploy` takes, instead of serving.")
def serve(file: Path, host: str | None, port: int | None, insecure: bool, config: bool) -> None:
    """Serve the models that FILE declares, or the engines of its pipeline, at an OpenAI-compatible address."""
    from jobs.endpoint_config import Endpoint

    given = {"host": host, "port": port}
    endpoint = Endpoint.from_yaml(file, {key: value for key, value in given.items() if value is not None})
    endpoint.check(insecure)
    from jobs import endpoint as running

    if config:
        import yaml

        click.echo(yaml.safe_dump(running.serve_config(endpoint), sort_keys=False), nl=False)
        return
    running.serve_until_stopped(endpoint)


if __name__ == "__main__":
    main()
