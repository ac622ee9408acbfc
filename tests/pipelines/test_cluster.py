"""Demands that could never be met are refused, and those that can are not."""

from __future__ import annotations

import math
import os
from typing import Any, ClassVar

import pytest

from pipelines.cluster import Resources, check_demands, joins_cluster, silenced, this_machine
from stages.checkpoint import Checkpoint
from stages.core.errors import ConfigError
from stages.core.stage import Stage


class Task(Stage):
    pass


class Actor(Stage):
    actor: ClassVar[bool] = True


LAPTOP = Resources(cpus=4, gpus=0, node_cpus=4, node_gpus=0, node_memory=8 * 2**30)
CLUSTER = Resources(cpus=32, gpus=4, node_cpus=8, node_gpus=1, node_memory=64 * 2**30)


def refused(has: Resources, *stages: Stage) -> tuple[str, str]:
    with pytest.raises(ConfigError) as error:
        check_demands(stages, has, "the cluster")
    return error.value.field, error.value.message


@pytest.mark.parametrize(
    "stages",
    [
        [],
        [Task(num_cpus=4)],
        [Task(), Actor(num_cpus=3)],
        [Task(num_cpus=2), Actor(concurrency=2)],
        [Task(num_cpus=0), Actor(num_cpus=0, concurrency=100)],
        [Task(), Actor(concurrency=[1, 50])],  # what it may grow to is not held yet
        [Task(memory="8GiB")],
        [Checkpoint(), Task(num_cpus=0.5), Actor(num_cpus=0.1, concurrency=30)],  # 30 times 0.1 is a bit more than 3
        [Actor(name="a", num_cpus=1.1), Actor(name="b", num_cpus=1.2), Actor(name="c", num_cpus=0.7)],
    ],
)
def test_what_fits_is_let_pass(stages: list[Stage]) -> None:
    check_demands(stages, LAPTOP, "this machine")


@pytest.mark.parametrize(
    ("stages", "field"),
    [
        ([Task(name="t", num_cpus=5)], "t.num_cpus"),
        ([Actor(name="a", num_cpus=4.5)], "a.num_cpus"),
        ([Actor(name="a", num_gpus=0.1)], "a.num_gpus"),
        ([Task(name="t", memory="9GiB")], "t.memory"),
        ([Task(), Actor(name="a", num_cpus=4)], "a.concurrency"),
        ([Task(num_cpus=2), Actor(name="a", concurrency=3)], "a.concurrency"),
        ([Actor(name="a", num_cpus=4)], "a.concurrency"),  # committing is a task too
        ([Task(), Actor(name="a"), Actor(name="b", num_cpus=3)], "b.concurrency"),
        ([Task(), Actor(name="a", concurrency=[4, 9])], "a.concurrency"),
    ],
)
def test_what_could_never_run_is_refused_with_the_field(stages: list[Stage], field: str) -> None:
    assert refused(LAPTOP, *stages)[0] == field


def test_the_figures_are_told() -> None:
    _, message = refused(LAPTOP, Task(num_cpus=2), Actor(concurrency=3))
    assert "hold 3 CPUs" in message
    assert "need 2 more" in message
    assert "has 4" in message
    assert "9.0GiB" in refused(LAPTOP, Task(memory="9GiB"))[1]


def test_a_node_must_hold_what_one_asks_for() -> None:
    check_demands([Task(), Actor(num_gpus=1, concurrency=4)], CLUSTER, "the cluster")
    check_demands([Task(), Actor(num_gpus=0.5, concurrency=8)], CLUSTER, "the cluster")
    assert refused(CLUSTER, Actor(name="a", num_gpus=2)) == (
        "a.num_gpus",
        "asks for 2 GPUs on a node; the cluster has 1",
    )
    assert refused(CLUSTER, Actor(name="a", num_cpus=9))[0] == "a.num_cpus"
    assert refused(CLUSTER, Actor(name="a", num_gpus=1, concurrency=5))[0] == "a.concurrency"
    assert refused(CLUSTER, Task(num_gpus=1), Actor(name="a", num_gpus=1, concurrency=4))[0] == "a.concurrency"


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("", 0), ("0", 1), ("0,1,3", 3), ("-1", 0), ("0,-1,1", 1), ("GPU-aa,GPU-bb", 2), ("NoDevFiles", 0)],
)
def test_devices_that_are_hidden_do_not_count(visible: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert this_machine().gpus == gpus


def test_this_machine_has_what_this_process_may_use() -> None:
    has = this_machine()
    assert 1 <= has.cpus == has.node_cpus <= (os.cpu_count() or 1)
    assert 2**28 < has.node_memory < math.inf


def test_a_cluster_is_joined_where_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert not joins_cluster()
    monkeypatch.setenv("RAY_ADDRESS", "ray://host:10001")
    assert joins_cluster()


def test_what_native_code_prints_is_kept_off_and_errors_are_not(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> Any:
        with silenced():
            os.write(2, b"greetings")
            raise ValueError("real")

    with pytest.raises(ValueError, match="real"):
        fail()
    os.write(2, b"afterwards")
    assert capfd.readouterr().err == "afterwards"
