"""Fixtures and hooks of the tests with a real containerd, for attacks by tenants of the node."""

from tests.integration.conftest import (  # noqa: F401 - used by pytest
    _swept,
    containerd_factory,
    containerd_version,
    pytest_collection_modifyitems,
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)
