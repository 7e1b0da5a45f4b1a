"""Maximum length of list filters."""

from __future__ import annotations

import pytest

from nodeagent.cli.list_options import ListOptions
from nodeagent.cli.list_request import ListRequest
from nodeagent.cli.list_views import IMAGES
from nodeagent.errors import UsageError


def test_filter_above_the_maximum_length_is_refused() -> None:
    ListRequest.of(IMAGES, ListOptions(filters=(f"name={'[' * 1024}",)))
    with pytest.raises(UsageError, match="longer than 1024 characters"):
        ListRequest.of(IMAGES, ListOptions(filters=(f"name={'[' * 1025}",)))
