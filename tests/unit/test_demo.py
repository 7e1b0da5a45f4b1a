"""Picture of the demo tour for the README."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from tests.support.demo import Screen, Shown, picture

RECORDED: Final = Path(__file__).parents[2] / "nodeagent/docs/tour.svg"


def test_picture_has_commands_and_coloured_output_of_the_screens() -> None:
    screens = [
        Shown(Screen("The sentence.", ("gc", "images")), ["imagefs \x1b[31m███\x1b[0m 92%", "  indented <b>"]),
        Shown(Screen("The second.", ("gc", "undo")), ["Restored 1 of 1 images"]),
    ]
    drawn = texts(picture(screens))
    expected = ["# The sentence.", "$ nodeagent gc images", "███", "  indented <b>", "$ nodeagent gc undo"]
    assert [each for each in drawn if each in expected] == expected
    assert picture(screens) == picture(screens)


def test_recorded_picture_is_small_refers_to_no_other_file_and_has_the_fall_of_the_usage() -> None:
    text = RECORDED.read_text(encoding="utf-8")
    assert len(text.encode()) < 150_000
    assert text.replace('"http://www.w3.org/2000/svg"', "").count("://") == text.count("unix://")
    assert "url(" not in text.replace("url(#tour-", "")
    assert any("imagefs 92% -> 80%" in each for each in texts(text))


def texts(svg: str) -> list[str]:
    """Return the texts of a picture, with spaces in place of no-break spaces."""
    root = ET.fromstring(svg)
    return ["".join(each.itertext()).replace("\xa0", " ") for each in root.iter("{http://www.w3.org/2000/svg}text")]
