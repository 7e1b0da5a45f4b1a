"""Certificates of the fake API server."""

from __future__ import annotations

import pytest

from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return a CA that issued the certificate of the API server."""
    found = Authority(tmp_path_factory.mktemp("authority"))
    found.issue("server")
    return found
