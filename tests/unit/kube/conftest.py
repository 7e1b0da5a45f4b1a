"""Fixtures of the API client tests: certificates and a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def api_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return a CA with server certificates (valid, expired, for another name) and a client certificate."""
    found = Authority(tmp_path_factory.mktemp("authority"))
    found.issue("server")
    found.issue("expired", days=-1)
    found.issue("foreign", names="DNS:other.test")
    found.issue("client", "/O=system:nodes/CN=system:node:node-1")
    return found


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return the path of a file with the token that the fake API server accepts."""
    path = tmp_path / "token"
    path.write_text("token-of-the-agent\n")
    return path
