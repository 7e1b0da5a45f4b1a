"""The demo on a simulated node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.simulated_demo import run_demo

if TYPE_CHECKING:
    import pytest


def test_demo_removes_exactly_the_previewed_items(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_demo() == 0
    assert "Removed exactly the previewed items: yes" in capsys.readouterr().out
