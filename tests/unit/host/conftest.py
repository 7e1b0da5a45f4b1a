"""Fixtures of the host tests: a simulated logind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from tests.support.login1 import Login1, PrivateBus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest_asyncio.fixture
async def login1(private_bus: PrivateBus, tmp_path: Path) -> AsyncIterator[Login1]:
    login1 = Login1(private_bus.address, tmp_path)
    await login1.start()
    yield login1
    await login1.stop()
