"""Stages that deliver: what they are given, and what they must promise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from stages.core.stage import Stage, operational


class Delivery(Protocol):
    """Committed rows on their way to an outside system.

    Rows are committed by unit. A unit's name changes when its rows do, so that two deliveries compare by names alone.
    """

    @property
    def pipeline(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Of every stage up to the sink: another one means other rows everywhere, whatever the units are called."""
        ...

    @property
    def metadata(self) -> dict[str, str]:
        """What an output must record about itself: `pipeline`, `fingerprint`, and `identities`, JSON of the models and
        libraries behind each stage by its label."""
        ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def units(self) -> Sequence[str]:
        """Every unit that the output must hold, in the order of the input."""
        ...

    @property
    def previous(self) -> dict[str, Any] | None:
        """What `publish` returned at the last finished delivery of this run directory, if there was one."""
        ...

    def tables(self, units: Iterable[str]) -> Iterator[pa.Table]:
        """The rows of each unit in `units`, one table a unit, in that order."""
        ...


class Sink(Stage):
    """A stage that hands committed rows to an outside system, at `uri`, after the run's work is committed.

    `publish` may be killed anywhere and is then called again: it must end with the output holding exactly the rows of
    `delivery.units`, none missing and none twice, and must not rewrite what is there already.
    """

    uri: str = operational(min_length=1, description="a place of its own, local or s3://")

    @property
    def target(self) -> str:
        """What it writes to, by which two sinks in each other's way are known."""
        return self.uri.rstrip("/")

    def publish(self, delivery: Delivery) -> dict[str, Any]:
        """Make the output hold exactly the delivery's rows.

        Returns a JSON state for the next delivery's `previous`, with the number of `rows` that the output now holds.
        """
        raise NotImplementedError
