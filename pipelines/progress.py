"""What a run is doing, while it does it: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stages.core.block import Count

if TYPE_CHECKING:
    from rich.table import Table


Key = tuple[str, str, int | None]


class Board:
    """The actor that stages report to: sums of what they did, by stage, and what is begun and not ended."""

    def __init__(self) -> None:
        self.counts: dict[str, Count] = {}
        self.begun: dict[Key, int] = {}

    def snapshot(self) -> dict[str, Count]:
        return self.counts

    def begin(self, key: Key) -> int:
        before = self.begun.get(key, 0)
        self.begun[key] = before + 1
        return before

    def end(self, key: Key, count: Count | None) -> None:
        self.begun.pop(key, None)
        if count is not None:
            before = self.counts.get(count.stage)
            self.counts[count.stage] = count if before is None else before + count


class Reporter:
    """The stages' line to the board."""

    def __init__(self, board: Any) -> None:
        self.board = board

    def begin(self, unit: str, stage: str, row: int | None = None) -> int:
        return self._ask(self.board.begin, (unit, stage, row)) or 0

    def end(self, unit: str, stage: str, row: int | None = None, count: Count | None = None) -> None:
        self._ask(self.board.end, (unit, stage, row), count)

    def _ask(self, method: Any, *arguments: Any) -> Any:
        import ray

        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.RayActorError:
            return None  # without the board a run knows less, and goes on


class Progress:
    """Shows the board until it is closed. `units_done` is set by whoever drives the run."""

    def __init__(self, stages: Sequence[str], units: int, every: float = 10.0) -> None:
        import ray

        self.stages, self.units, self.every = list(stages), units, every
        self.units_done = 0
        self.started = time.monotonic()
        self._board = ray.remote(num_cpus=0)(Board).remote()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._terminal if sys.stderr.isatty() else self._lines, daemon=True)

    @property
    def monitor(self) -> Reporter:
        return Reporter(self._board)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def snapshot(self) -> dict[str, Count]:
        """What each stage has done so far in this run."""
        import ray

        try:
            return dict(ray.get(self._board.snapshot.remote(), timeout=5))
        except Exception:  # noqa: BLE001 - progress must never be what stops a run
            return {}

    def _lines(self) -> None:
        while not self._ended.wait(self.every):
            print(self._line(self.snapshot()), file=sys.stderr, flush=True)

    def _line(self, counts: dict[str, Count]) -> str:
        seconds = time.monotonic() - self.started
        parts = [f"[{seconds:.0f} s] {self.units_done}/{self.units} units"]
        for stage in self.stages:
            if count := counts.get(stage):
                lost = "".join(
                    f", {n} {word}" for n, word in ((count.dropped, "dropped"), (count.failed, "failed")) if n
                )
                parts.append(f"{stage} {count.rows_out} ({count.rows_out / seconds:.1f}/s{lost})")
        return " | ".join(parts)

    def _terminal(self) -> None:
        from rich.console import Console
        from rich.live import Live

        with Live(self._table({}), console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
            while not self._ended.wait(0.5):
                live.update(self._table(self.snapshot()))

    def _table(self, counts: dict[str, Count]) -> Table:
        from rich.table import Table

        seconds = max(time.monotonic() - self.started, 0.001)
        table = Table(title=f"{self.units_done}/{self.units} units, {seconds:.0f} s", title_justify="left")
        table.add_column("stage")
        for name in ("in", "out", "dropped", "failed", "rows/s"):
            table.add_column(name, justify="right")
        for stage in self.stages:
            count = counts.get(stage, Count(stage, 0, 0, 0, 0, 0))
            figures = [count.rows_in, count.rows_out, count.dropped, count.failed, f"{count.rows_out / seconds:.1f}"]
            table.add_row(stage, *map(str, figures))
        return table


def summary(ledger: Sequence[Count]) -> Table:
    """The ledger as a table for a terminal."""
    from rich.table import Table

    table = Table()
    table.add_column("stage")
    for name in ("in", "ok", "dropped", "failed", "rows out", "seconds"):
        table.add_column(name, justify="right")
    for count in ledger:
        figures = [count.rows_in, count.ok, count.dropped, count.failed, count.rows_out, f"{count.seconds:.1f}"]
        table.add_row(count.stage, *map(str, figures))
    return table
