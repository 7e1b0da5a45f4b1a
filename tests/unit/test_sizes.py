"""Check of code sizes: limits for files, functions and classes, and exceptions with a reason in a comment."""

from __future__ import annotations

import pytest

from tests.sizes import find


def assigned(count: int) -> str:
    return "".join(f"        self.a{number} = {number}\n" for number in range(count))


def constructor(attributes: int, *, comment: str = "") -> str:
    return f"class Made:{comment}\n    def __init__(self) -> None:\n{assigned(attributes)}"


def called(parameters: int, *, comment: str = "") -> str:
    names = ", ".join(f"p{number}=0" for number in range(parameters))
    return f"class Made:\n    def __init__({comment}\n        self, {names}\n    ) -> None:\n        pass\n"


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        pytest.param("x = 1\n" * 500, [], id="file at the limit"),
        pytest.param("x = 1\n" * 501, ["501 lines, limit 500"], id="file over the limit"),
        pytest.param("# 520 lines: a table\n" + "x = 1\n" * 501, [], id="file with a reason"),
        pytest.param("# 520 lines: a table\n" + "x = 1\n" * 520, ["521 lines, limit 520"], id="file over its reason"),
        pytest.param("# 520 lines:\n" + "x = 1\n" * 501, ["502 lines, limit 500"], id="file with an empty reason"),
        pytest.param("def f():\n" + "    x = 1\n" * 59, [], id="function at the limit"),
        pytest.param(
            "async def f():\n" + "    x = 1\n" * 60, ["function f has 61 lines, limit 60"], id="function over the limit"
        ),
        pytest.param(constructor(10), [], id="attributes at the limit"),
        pytest.param(constructor(11), ["class Made has 11 attributes, limit 10"], id="attributes over the limit"),
        pytest.param(constructor(11, comment="  # 11 attributes: one per table"), [], id="attributes with a reason"),
        pytest.param(
            constructor(12, comment="  # 11 attributes: one per table"),
            ["class Made has 12 attributes, limit 11"],
            id="attributes over their reason",
        ),
        pytest.param(called(7), [], id="parameters at the limit"),
        pytest.param(called(8), ["constructor has 8 parameters, limit 7"], id="parameters over the limit"),
        pytest.param(called(8, comment="  # noqa: PLR0913 - one per source"), [], id="parameters with a reason"),
        pytest.param(
            called(8, comment="  # noqa: PLR0913"),
            ["constructor has 8 parameters, limit 7"],
            id="parameters without a reason",
        ),
    ],
)
def test_size_over_its_limit_is_found_without_a_reason(text: str, findings: list[str]) -> None:
    assert [each.text for each in find(text)] == findings
