"""Setup of every test run: hypothesis profile, a node without a kubelet, local times in UTC and texts in UTF-8."""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from nodeagent.host import kubelet_traces as kubelet_detection
from tests.support.kubelet_tree import make_node

if TYPE_CHECKING:
    from collections.abc import Iterator

# No deadline: on a shared machine an example can run ten times as long as usual. The examples of a test depend only on
# the test, so that its result is not a matter of luck; the profile of make campaign-properties searches for new ones.
settings.register_profile("fast", max_examples=20, derandomize=True, deadline=None)
settings.register_profile("ci", max_examples=50, derandomize=True, deadline=None, print_blob=True)
settings.register_profile("search", max_examples=200, deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "fast")


os.environ["TZ"] = "UTC"
time.tzset()
os.environ["LC_ALL"] = "C.UTF-8"


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection.

    The daemon runs a full collection after each pass; with the heap of a test run, each collection would take 0.1 s.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _node_without_kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Detect kubelets in an empty directory tree, so that a kubelet on this machine does not affect a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubelet_detection, "HOST_ROOT", make_node(tmp_path_factory.mktemp("no-kubelet")))
        yield
