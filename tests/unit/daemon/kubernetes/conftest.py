"""Certificates for the double of the API server."""

from __future__ import annotations

import pytest

from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return an authority that issued the certificate of the server."""
    found = Authority(tmp_path_factory.mktemp("authority"))
    found.issue("server")
    return found
