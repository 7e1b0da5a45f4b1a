"""Item counts with singular and plural names."""

from __future__ import annotations

import pytest

from nodeagent.model.decision import ItemKind


@pytest.mark.parametrize(
    ("kind", "one", "several"),
    [
        (ItemKind.IMAGE, "1 image", "2 images"),
        (ItemKind.SANDBOX, "1 sandbox", "2 sandboxes"),
        (ItemKind.POD_LOG_DIRECTORY, "1 pod log directory", "2 pod log directories"),
        (ItemKind.CONTAINER_LOG_LINK, "1 container log link", "2 container log links"),
    ],
)
def test_items_are_counted_in_singular_and_plural(kind: ItemKind, one: str, several: str) -> None:
    assert (kind.counted(1), kind.counted(2)) == (one, several)
    assert kind.counted(0) == several.replace("2", "0")
