"""Detection of image names updated after the plan, including timestamps of a wall clock corrected since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nodeagent.gc.removers import changed_since
from nodeagent.runtime.containerd import Stamp, StoredImage

OBSERVED = datetime(2026, 1, 1, tzinfo=UTC)
NOW = OBSERVED + timedelta(seconds=30)


@pytest.mark.parametrize(
    ("age", "changed"),
    [
        pytest.param(timedelta(seconds=1), False, id="before-the-plan"),
        pytest.param(timedelta(seconds=-1), True, id="after-the-plan"),
        pytest.param(timedelta(seconds=-31), True, id="within-the-tolerance"),
        pytest.param(timedelta(hours=-2), False, id="under-a-clock-ahead"),
        pytest.param(timedelta(days=-3650), False, id="under-a-clock-years-ahead"),
    ],
)
def test_image_is_kept_only_if_a_name_changed_between_plan_and_removal(age: timedelta, *, changed: bool) -> None:
    stamp = Stamp(int((OBSERVED - age).timestamp()), 0)
    name = StoredImage("app:v1", "sha256:1", {}, Stamp(1, 0), stamp)
    assert bool(changed_since(OBSERVED, [name], NOW)) is changed
