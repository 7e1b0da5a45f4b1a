"""File of outstanding evictions: content, and errors for malformed files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nodeagent.errors import StoreError
from nodeagent.eviction.effects import FILE_NAME, EvictionFile
from nodeagent.eviction.plan.effects import OutstandingEffect, Victim
from nodeagent.eviction.plan.reclaim import Shortage
from nodeagent.model.pressure import Signal

if TYPE_CHECKING:
    from pathlib import Path

EFFECTS = (
    OutstandingEffect(
        "eviction of shop/web", Shortage.IMAGEFS, Signal.IMAGEFS_AVAILABLE, 5.0, 7, 1.5, 31.5, "uid", confirmed=True
    ),
    OutstandingEffect("logs on nodefs", Shortage.NODEFS, Signal.NODEFS_INODES_FREE, None, None, 1, 2, ineffective=True),
)
VICTIMS = (Victim("uid", "shop", "web", ("s1", "s2"), ("/layer",), 1.5, verified=True, cleared=True),)


def test_written_state_is_read_in_the_same_boot_only(tmp_path: Path) -> None:
    file = EvictionFile(tmp_path / "state")
    assert file.read("boot") == ((), ())
    file.write("boot", EFFECTS, VICTIMS)
    assert file.read("boot") == (EFFECTS, VICTIMS)
    assert file.read("another") == ((), ())
    file.write("", EFFECTS, VICTIMS)
    assert file.read("") == ((), ())


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("effects", "until_s", float("nan")),
        ("effects", "until_s", float("inf")),
        ("effects", "until_s", True),
        ("effects", "predicted", "7"),
        ("effects", "signal", "memory.avail"),
        ("effects", "shortage", 5),
        ("effects", "confirmed", 1),
        ("victims", "layers", "/layer"),
        ("victims", "sandbox_ids", [1]),
        ("victims", "uid", None),
        ("victims", "at_s", None),
    ],
)
def test_value_of_another_type_is_rejected(tmp_path: Path, part: str, name: str, value: Any) -> None:
    file = EvictionFile(tmp_path)
    file.write("boot", EFFECTS, VICTIMS)
    document = json.loads((tmp_path / FILE_NAME).read_text())
    document[part][0][name] = value
    (tmp_path / FILE_NAME).write_text(json.dumps(document))
    with pytest.raises(StoreError, match=f"memory.avail|not JSON compliant|{name}"):
        file.read("boot")


def test_file_without_later_attributes_is_read(tmp_path: Path) -> None:
    file = EvictionFile(tmp_path)
    file.write("boot", EFFECTS, VICTIMS)
    document = json.loads((tmp_path / FILE_NAME).read_text())
    for each in document["effects"]:
        del each["confirmed_s"], each["confirmed_available"]
    (tmp_path / FILE_NAME).write_text(json.dumps(document))
    assert file.read("boot") == (EFFECTS, VICTIMS)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "nodeagent/evictions/v2"}', "\x00"])
def test_other_document_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(StoreError, match="outstanding evictions unknown"):
        EvictionFile(tmp_path).read("boot")


def test_unwritable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        EvictionFile(tmp_path / "file" / "state").write("boot", EFFECTS, VICTIMS)
