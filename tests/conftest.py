"""What every test run has: in CI the property tests draw the same examples each time, and no kubelet is found."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from nodeagent.host import kubelet_detection
from tests.support.kubelet_tree import make_node

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


@pytest.fixture(scope="session", autouse=True)
def _node_without_kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide this machine from the detection of a kubelet: what runs here decides no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubelet_detection, "HOST_ROOT", make_node(tmp_path_factory.mktemp("no-kubelet")))
        yield
