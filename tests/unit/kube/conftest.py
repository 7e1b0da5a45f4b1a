"""Certificates and the double of the API server, for the tests of its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def api_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return a CA with a certificate of a server, an expired one, and one of a client."""
    found = Authority(tmp_path_factory.mktemp("authority"))
    found.issue("server")
    found.issue("expired", days=-1)
    found.issue("foreign", names="DNS:other.test")
    found.issue("client", "/O=system:nodes/CN=system:node:node-1")
    return found


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return a file with the accepted token."""
    path = tmp_path / "token"
    path.write_text("token-of-the-agent\n")
    return path
