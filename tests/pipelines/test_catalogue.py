"""The catalogue: what changed is worked on, what did not is not, and no unit's name is used twice."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.sources import Source
from connectors.storage import Place
from pipelines import catalogue
from pipelines.catalogue import Catalogue, Unit
from stages.read import SOURCES, Read

READ = Read(uri="docs", unit_docs=3)
RUN = Place("run")


@pytest.fixture
def docs(work: Path) -> Path:
    folder = work / "docs"
    folder.mkdir()
    for n in range(7):
        write(folder / f"{n}.txt", f"text {n}", n)
    return folder


def write(path: Path, text: str, time: int) -> None:
    path.write_text(text)
    os.utime(path, (time, time))


def updated(read: Read = READ, forget: list[str] | None = None) -> list[Unit]:
    """Update the saved catalogue as a run does, and give its units."""
    known = catalogue.update(catalogue.load(Place("run")), read, pa.array(forget, pa.string()) if forget else None)
    catalogue.save(Place("run"), known)
    again = catalogue.load(Place("run"))
    assert again.table.equals(known.table)
    assert again.made == known.made
    return list(again.units())


def members(unit: Unit) -> list[str]:
    return [uri.removeprefix("docs/").removesuffix(".txt") for uri in unit.sources["uri"].to_pylist()]


def layout(units: list[Unit]) -> list[str]:
    return ["".join(members(unit)) for unit in units]


def test_documents_are_grouped_and_units_are_named(docs: Path) -> None:
    units = updated()
    assert layout(units) == ["012", "345", "6"]
    assert all(unit.sources.schema.equals(SOURCES) for unit in units)
    assert [unit.size for unit in units] == [3, 3, 1]
    assert [unit.name for unit in units] == [unit.id for unit in units]
    assert len({unit.id for unit in units}) == 3
    assert not any(unit.partial for unit in units)


def test_an_empty_catalogue_has_no_units(work: Path) -> None:
    Path("docs").mkdir()
    assert list(catalogue.load(Place("run")).units()) == []
    assert updated() == []
    assert updated() == []


def test_nothing_changed_writes_nothing(docs: Path) -> None:
    before = updated()
    inode = os.stat("run/catalogue.parquet").st_ino
    after = updated()
    assert [(u.id, u.name, members(u)) for u in after] == [(u.id, u.name, members(u)) for u in before]
    assert os.stat("run/catalogue.parquet").st_ino == inode


def test_the_same_documents_give_the_same_units_anywhere(docs: Path) -> None:
    first = updated()
    shutil.rmtree("run")
    assert [unit.id for unit in updated()] == [unit.id for unit in first]


@pytest.mark.parametrize("change", ["content", "touch"])
def test_a_changed_document_leaves_its_unit_and_joins_a_new_one(docs: Path, change: str) -> None:
    before = updated()
    if change == "content":
        write(docs / "1.txt", "other text", 1)
    else:
        os.utime(docs / "1.txt", (99, 99))
    after = updated()
    assert layout(after) == ["02", "345", "6", "1"]
    assert [unit.id for unit in after[:3]] == [unit.id for unit in before]
    assert after[0].partial
    assert after[0].size == 3
    assert after[0].name.startswith(f"{before[0].id}-")
    assert after[1].name == before[1].name


def test_added_deleted_renamed(docs: Path) -> None:
    before = updated()
    write(docs / "new.txt", "new", 50)
    (docs / "3.txt").unlink()
    (docs / "6.txt").rename(docs / "six.txt")
    after = updated()
    assert layout(after) == ["012", "45", "newsix"]
    assert after[0].name == before[0].name
    assert before[2].id not in {unit.id for unit in after}


def test_a_unit_that_lost_all_is_gone(docs: Path) -> None:
    updated()
    for n in (3, 4, 5):
        (docs / f"{n}.txt").unlink()
    assert layout(updated()) == ["012", "6"]


def test_names_of_partial_units_follow_their_members(docs: Path) -> None:
    updated()
    names = set()
    for n in (0, 1):
        names.add(updated()[0].name)
        (docs / f"{n}.txt").unlink()
    unit = updated()[0]
    names.add(unit.name)
    assert len(names) == 3
    assert unit.doc_ids().to_pylist() == [unit.doc_ids()[0].as_py()]
    reordered = Unit(unit.id, unit.sources.take(list(reversed(range(unit.sources.num_rows)))), unit.size)
    assert reordered.name == unit.name


def test_a_restored_document_joins_a_new_unit(docs: Path) -> None:
    before = updated()
    text = (docs / "6.txt").read_text()
    (docs / "6.txt").unlink()
    updated()
    write(docs / "6.txt", text, 6)
    after = updated()
    assert layout(after) == ["012", "345", "6"]
    # Its bytes are as they were, but what became of it then need not become of it now.
    assert after[2].id != before[2].id


def test_forgotten_documents_join_new_units_under_new_names_each_time(docs: Path) -> None:
    seen = {unit.id for unit in updated()}
    for _ in range(3):
        units = updated(forget=["docs/6.txt"])
        assert layout(units)[-1] == "6"
        assert units[-1].id not in seen
        seen.add(units[-1].id)
    units = updated(forget=["docs/1.txt", "docs/4.txt", "docs/not known.txt"])
    assert layout(units) == ["02", "35", "6", "14"]


def test_a_changed_file_of_rows_is_read_anew_in_all_its_parts(docs: Path) -> None:
    lines = [f'{{"text": "{n}"}}\n' for n in range(50)]
    (docs / "rows.jsonl").write_text("".join(lines))
    read = Read(uri="docs", include="*.jsonl", unit_bytes=100)
    before = updated(read)
    assert len(before) > 5
    assert [unit.size for unit in before] == [1] * len(before)
    (docs / "rows.jsonl").write_text("".join([*lines, '{"text": "more"}\n']))
    after = updated(read)
    assert not {unit.id for unit in before} & {unit.id for unit in after}
    forgotten = updated(read, forget=["docs/rows.jsonl"])
    assert not {unit.id for unit in forgotten} & {unit.id for unit in after}


def test_what_could_not_be_read_is_taken_again_when_it_can(docs: Path) -> None:
    os.symlink("target.txt", docs / "link.txt")
    before = updated()
    assert "link" in members(before[-1])
    write(docs / "target.txt", "at last", 3)
    after = updated()
    assert layout(after)[-1] == "linktarget"


def test_odd_names_and_large_listings_are_kept(docs: Path) -> None:
    for name in (b"caf\xe9.txt", b"a%FF.txt", b"a\xff.txt", b"new\nline.txt", b"\0x"[1:]):
        with open(os.path.join(os.fsencode(docs), name), "w") as file:
            file.write("odd")
    units = updated(Read(uri="docs"))
    assert sum(unit.sources.num_rows for unit in units) == 12
    assert layout(updated(Read(uri="docs"))) == layout(units)


def test_random_changes_never_lose_a_document_nor_use_a_name_twice(docs: Path) -> None:
    chance = random.Random(3)
    state: dict[str, str] = {path.name: path.read_text() for path in docs.iterdir()}
    known: dict[str, frozenset[tuple[str, str]]] = {}
    for turn in range(40):
        for _ in range(chance.randrange(4)):
            name = f"{chance.randrange(12)}.txt"
            if chance.random() < 0.4:
                (docs / name).unlink(missing_ok=True)
                state.pop(name, None)
            else:
                # Few texts and times, so that old states come back.
                text = chance.choice("ab")
                write(docs / name, text, ord(text))
                state[name] = text
        forget = [f"docs/{name}" for name in state if chance.random() < 0.1]
        units = updated(forget=forget)
        listed = [uri.removeprefix("docs/") for unit in units for uri in unit.sources["uri"].to_pylist()]
        assert sorted(listed) == sorted(state), turn
        assert len({unit.name for unit in units}) == len(units)
        for unit in units:
            content = frozenset(
                (row["uri"], row["version"]) for row in unit.sources.select(["uri", "version"]).to_pylist()
            )
            assert content
            assert known.setdefault(unit.name, content) == content
            assert unit.sources.num_rows <= unit.size <= 3


def test_members_of_a_unit_stay_side_by_side() -> None:
    table = catalogue.SCHEMA.empty_table()
    assert list(Catalogue(table).units()) == []


class Blinded(Read):
    """A listing in which a folder cannot be looked into."""

    folder: str

    def sources(self) -> Iterator[Source]:
        kept = (source for source in super().sources() if not source.uri.startswith(f"{self.folder}/"))
        yield from kept
        yield Source(self.folder, self.folder.encode(), version="unread", reason="unreadable", message="not now")


def test_a_folder_that_cannot_be_listed_keeps_its_documents(docs: Path) -> None:
    (docs / "deep").mkdir()
    write(docs / "deep" / "a.txt", "deep text", 1)
    before = {uri for unit in updated() for uri in unit.sources["uri"].to_pylist()}
    (docs / "0.txt").unlink()
    after = {
        uri for unit in updated(Blinded(uri="docs", folder="docs/deep")) for uri in unit.sources["uri"].to_pylist()
    }
    assert after == before - {"docs/0.txt"} | {"docs/deep"}
