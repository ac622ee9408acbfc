"""YAML: what is wrong is named, what is right comes back the same, and secrets stay out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from own.shout import Shout
from own.words import Words

from pipelines import config
from pipelines.pipeline import Pipeline
from stages.chunk import Chunk
from stages.core.errors import ConfigError
from stages.parse import Parse
from stages.read import Read
from stages.write_parquet import WriteParquet

GOOD = """
name: rag
stages:
  - read: {uri: ./docs}
  - parse: {timeout_s: 60}
  - checkpoint
  - chunk: {size: 100, overlap: 10}
  - write_parquet: {uri: ./out}
"""


def built(text: str = GOOD, *overrides: str) -> Pipeline:
    return config.build(yaml.safe_load(text), overrides)


def refused(text: str = GOOD, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        built(text, *overrides)
    return error.value


def stage(pipeline: Pipeline, name: str) -> Any:
    return next(stage for stage in pipeline.stages if stage.label == name)


def test_yaml_and_python_say_the_same() -> None:
    pipeline = built()
    assert [stage.kind() for stage in pipeline.stages] == ["read", "parse", "checkpoint", "chunk", "write_parquet"]
    assert stage(pipeline, "parse") == Parse(timeout_s=60)
    assert stage(pipeline, "chunk") == Chunk(size=100, overlap=10)
    assert pipeline.max_failed == 0.25
    assert built(GOOD + "max_failed: 0.5\n").max_failed == 0.5


def test_stages_of_ones_own_have_their_dotted_path() -> None:
    pipeline = built("{name: p, stages: [read: {uri: docs}, own.shout: {ending: '?'}, own.words: ]}")
    assert pipeline.stages[1:] == (Shout(ending="?"), Words())
    assert built(pipeline.to_yaml()) == pipeline
    assert built(config.dump(pipeline, resolved=True)) == pipeline


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("[]", "pipeline", "a mapping with `name` and `stages`"),
        ("", "pipeline", "a mapping"),
        ("name: p", "stages", "must be a list"),
        ("{name: p, stages: {}}", "stages", "must be a list"),
        ("{name: p, satges: []}", "satges", "did you mean 'stages'"),
        ("{name: p, stages: [{read: {uri: a}, parse: {}}]}", "stages[1]", "one name with its fields"),
        ("{name: p, stages: [[read]]}", "stages[1]", "one name with its fields"),
        ("{name: p, stages: [~]}", "stages[1]", "one name with its fields"),
        ("{name: p, stages: [read: docs]}", "read", "must be a mapping, not 'docs'"),
        ("{name: p, stages: [raed: {uri: docs}]}", "raed", "did you mean 'read'"),
        ("{name: p, stages: [read: {uri: a, inclued: b}]}", "read.inclued", "did you mean 'include'"),
        ("{name: p, stages: [read: {uri: a, 3: b}]}", "read.3", "there is no such field"),
        ("{name: p, stages: [read: ]}", "read.uri", "must be given"),
        ("{name: p, stages: [read: {uri: []}]}", "read.uri", "at least 1 item"),
        ("{name: p, stages: [read: {uri: 5}]}", "read.uri", "5"),
        ("{name: p, stages: [read: {uri: a, unit_docs: 0}]}", "read.unit_docs", "greater than or equal to 1, not 0"),
        ("{name: p, stages: [read: {uri: a, max_bytes: 1 parsec}]}", "read.max_bytes", "byte unit: parsec"),
        ("{name: p, stages: [read: {uri: a, format: csv}]}", "read.format", "'auto', 'files', 'jsonl' or 'parquet'"),
        ("{name: p, stages: [read: {uri: a, exclude: ['!']}]}", "read.exclude", "'!' is no pattern"),
        ("{name: p, stages: [read: {uri: a}, chunk: {concurrency: 0}]}", "chunk.concurrency", "a number from 1"),
        ("{name: p, stages: [read: {uri: a}, chunk: {name: c, num_cpus: -1}]}", "c.num_cpus", "not -1"),
        ("{name: '', stages: [read: {uri: a}, chunk: {}]}", "name", "needs a name"),
        ("{name: p, max_failed: 2, stages: [read: {uri: a}, parse: {}]}", "max_failed", "no share"),
    ],
)
def test_what_is_wrong_is_named(text: str, field: str, said: str) -> None:
    error = refused(text)
    assert error.field == field
    assert said in error.message


def test_files_that_are_none(work: Path) -> None:
    for content, said in ((b"a: [", "not valid YAML"), (b"\xff\xfe", "cannot be read"), (b"a: \0", "not valid YAML")):
        Path("p.yaml").write_bytes(content)
        with pytest.raises(ConfigError, match=said) as error:
            Pipeline.from_yaml("p.yaml")
        assert error.value.field == "p.yaml"
    with pytest.raises(ConfigError, match="no such file"):
        Pipeline.from_yaml("missing.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Pipeline.from_yaml(work)
    Path("p.yaml").write_text("a: !!python/object/apply:os.system ['touch hacked']")
    with pytest.raises(ConfigError, match="not valid YAML"):
        Pipeline.from_yaml("p.yaml")
    assert not Path("hacked").exists()


def test_fields_can_be_set_from_the_command_line() -> None:
    pipeline = built(
        GOOD,
        "chunk.size=256",
        "read.uri=[a, b]",
        "read.storage_options.key=k",
        "read.storage_options.client_kwargs.region_name=eu",
        "max_failed=0.1",
        "name=other",
        "parse.timeout_s=1.5",
        "write_parquet.uri=s3://bucket/out=1",
    )
    assert stage(pipeline, "chunk").size == 256
    assert stage(pipeline, "read").uri == ("a", "b")
    assert stage(pipeline, "read").storage_options == {"key": "k", "client_kwargs": {"region_name": "eu"}}
    assert (pipeline.name, pipeline.max_failed) == ("other", 0.1)
    assert stage(pipeline, "parse").timeout_s == 1.5
    assert stage(pipeline, "write_parquet").uri == "s3://bucket/out=1"


def test_a_stage_is_set_by_its_own_name_or_its_dotted_path() -> None:
    text = "{name: p, stages: [read: {uri: a}, own.shout: {}, filter: {name: small}, filter: {name: large.x}]}"
    pipeline = built(text, "own.shout.ending='?'", "small.min_chars=10", "large.x.min_chars=900")
    assert stage(pipeline, "own.shout").ending == "?"
    assert (stage(pipeline, "small").min_chars, stage(pipeline, "large.x").min_chars) == (10, 900)


@pytest.mark.parametrize(
    ("override", "field", "said"),
    [
        ("chunk.size", "chunk.size", "write it as stage.field=value"),
        ("chunk.size=many", "chunk.size", "not 'many'"),
        ("chunk.size=", "chunk.size", "not None"),
        ("chunk.sise=1", "chunk.sise", "did you mean 'size'"),
        ("chnk.size=1", "chnk.size", "no stage 'chnk' (did you mean 'chunk'?)"),
        ("max_faild=1", "max_faild", "did you mean 'max_failed'"),
        ("stages=[]", "stages", "no such field"),
        ("chunk.size=[", "chunk.size", "not valid YAML"),
        ("read.uri.x=1", "read.uri.x", "'uri' is no mapping"),
        ("chunk.=1", "chunk.", "no such field"),
        (".size=1", ".size", "no such field"),
        ("=1", "", "no such field"),
        ("own.shout.ending=x", "own.shout.ending", "no stage 'own'"),
    ],
)
def test_settings_that_are_wrong_are_named(override: str, field: str, said: str) -> None:
    error = refused(GOOD, override)
    assert error.field == field
    assert said in error.message


def test_a_setting_for_one_of_two_alike_is_refused() -> None:
    text = "{name: p, stages: [read: {uri: a}, chunk: {}, chunk: {}]}"
    assert "2 stages are called 'chunk'" in refused(text, "chunk.size=5").message


def test_a_setting_touches_no_other_stage_that_shares_an_anchor() -> None:
    text = """
    name: p
    stages:
      - read: {uri: a, storage_options: &s3 {endpoint_url: "http://one", key: k}}
      - parse
      - write_parquet: {uri: b, storage_options: *s3}
    """
    pipeline = built(text, "read.storage_options.endpoint_url=http://two")
    assert stage(pipeline, "write_parquet").storage_options["endpoint_url"] == "http://one"


def test_a_pipeline_comes_back_from_its_yaml() -> None:
    pipeline = Pipeline(
        "größe: #1",
        [
            Read(uri=["a", "b c"], include=("*.pdf",), max_bytes="1GiB", format="files", memory="2GiB"),
            Parse(name="p", concurrency=(1, 4), num_cpus=0.5),
            Chunk(size=77, overlap=0),
            WriteParquet(uri="out", file_bytes=5),
        ],
        max_failed=0.0,
    )
    assert built(pipeline.to_yaml()) == pipeline


SECRETS = """
name: p
stages:
  - read:
      uri: s3://a
      storage_options:
        key: SECRET1
        secret: SECRET2
        endpoint_url: http://host:9000
        client_kwargs: {aws_session_token: SECRET3, region_name: eu, other: [SECRET4, {deep: SECRET5}]}
  - parse: {passwords: [SECRET6, SECRET7]}
  - write_parquet: {uri: out, storage_options: {token: SECRET8}}
"""


def test_secrets_are_written_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.plan import describe

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    pipeline = built(SECRETS)
    assert stage(pipeline, "parse").passwords == ("SECRET6", "SECRET7")
    assert "SECRET" not in pipeline.to_yaml()
    assert "SECRET" not in describe(pipeline, None)
    dumped = yaml.safe_load(pipeline.to_yaml())
    options = dumped["stages"][0]["read"]["storage_options"]
    assert options["endpoint_url"] == "http://host:9000"
    assert options["client_kwargs"]["region_name"] == "eu"
    assert "SECRET" not in repr(pipeline.stages[0])
