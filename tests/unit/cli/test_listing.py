"""Options of lists: order, filters, formats, refused keys."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from hypothesis import given, strategies as st

from nodeagent.api.common import ReasonDocument, Runtime
from nodeagent.cli.listing import CONTAINERS, HOLDS, IMAGES, PASSES, PODS, ListOptions
from nodeagent.cli.lists import ListRequest
from nodeagent.cli.table import short_id
from nodeagent.errors import UsageError
from nodeagent.gc.documents.lists import ImageDocument, Images, Pods
from nodeagent.model import decision
from nodeagent.model.decision import Accounting, ReasonCode, Verdict
from nodeagent.model.node import Role
from nodeagent.text import escape
from tests.unit.builders import NOW, ago

if TYPE_CHECKING:
    from nodeagent.cli.listing import ListView

VIEWS = (IMAGES, CONTAINERS, PODS, HOLDS, PASSES)
REMOVED = ReasonDocument.of(decision.Reason(ReasonCode.ALL_UNUSED))
KEPT = ReasonDocument.of(decision.Reason(ReasonCode.PINNED))
ANYTHING = st.text(st.characters(), max_size=20)


def document_of(rows: list[ImageDocument]) -> Images:
    return Images(
        observed_at=NOW,
        runtime=Runtime(name="containerd", version="2", api_version="v1", endpoint="u", role=Role.STANDALONE),
        imagefs=None,
        warnings=(),
        images=tuple(rows),
    )


@dataclass
class Printed:
    """Prints a list of images with the given options and returns the output."""

    capsys: pytest.CaptureFixture[str]
    images: list[ImageDocument] = field(default_factory=list)

    def __call__(self, **options: object) -> str:
        self.capsys.readouterr()
        request = ListRequest.of(IMAGES, ListOptions()._replace(**options))  # type: ignore[arg-type]
        request.print(document_of(self.images), empty="no images", now=NOW)
        return self.capsys.readouterr().out

    def names(self, **options: object) -> list[str]:
        return self(form="name", **options).splitlines()


def image(
    name: str, *more: str, size: int | None = 1, used_s: float | None = None, removed: bool = False
) -> ImageDocument:
    return ImageDocument(
        id=f"sha256:{name.encode(errors='surrogatepass').hex():0<64}"[:71],
        repo_tags=(name, *more),
        repo_digests=(),
        size_bytes=size,
        frees_bytes=size,
        frees_inodes=None,
        accounting=Accounting.LAYERS,
        pinned=name == "b",
        first_detected=None,
        last_used=None if used_s is None else ago(used_s),
        verdict=Verdict.REMOVE if removed else Verdict.KEEP,
        reason=REMOVED if removed else KEPT,
    )


SHORT_B = short_id(image("b").id)


@pytest.fixture
def listed(capsys: pytest.CaptureFixture[str]) -> Printed:
    rows = [image("a", size=3, used_s=10), image("b", size=None), image("c", "c2", size=1, used_s=99, removed=True)]
    return Printed(capsys, rows)


@pytest.mark.parametrize(
    ("key", "order"),
    [("size", "cab"), ("-size", "acb"), ("last-used", "cab"), ("-name", "cba"), ("verdict", "abc"), ("", "abc")],
)
def test_rows_are_sorted_by_a_column_with_unknown_values_last(listed: Printed, key: str, order: str) -> None:
    assert listed.names(sort_by=key) == list(order)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (("verdict=remove",), "c"),
        (("name=a", "name=b"), "ab"),
        (("name=[ab]", "pinned=true"), "b"),
        (("name!=a",), "bc"),
        (("name!=a", "name!=b"), "c"),
        (("name=c2",), "c"),
        (("other-tags=c*",), "c"),
        (("name=A",), ""),
        (("name=",), ""),
        ((f"id={SHORT_B}",), "b"),
        ((f"id={SHORT_B}*",), "b"),
        ((f"id!={SHORT_B}",), "ac"),
        (("reason=all-unused", "reason=pinned", "verdict=keep"), "ab"),
    ],
)
def test_filters_with_one_key_are_alternatives_and_with_several_keys_conditions(
    listed: Printed, filters: tuple[str, ...], left: str
) -> None:
    assert listed.names(filters=filters) == list(left)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.rows)
def test_unknown_keys_are_refused_with_the_known_ones(view: ListView[object]) -> None:
    for options, keys in (
        (ListOptions(sort_by="colour"), view.sort_keys),
        (ListOptions(sort_by="--name"), view.sort_keys),
        (ListOptions(filters=("colour=red",)), view.filter_keys),
        (ListOptions(filters=("name",)), view.filter_keys),
    ):
        with pytest.raises(UsageError) as refused:
            ListRequest.of(view, options)
        assert ", ".join(keys) in str(refused.value)


def test_quiet_is_refused_with_a_document_form(listed: Printed) -> None:
    with pytest.raises(UsageError, match="--quiet"):
        listed(quiet=True, form="json")


def test_filters_and_order_apply_to_documents(listed: Printed) -> None:
    options = {"filters": ("verdict=keep",), "sort_by": "-name"}
    parsed = json.loads(listed(form="json", **options))
    assert [each["repo_tags"] for each in parsed["images"]] == [["b"], ["a"]]
    assert yaml.safe_load(listed(form="yaml", **options)) == parsed
    assert parsed["images"][0]["reason"] == {"code": "pinned", "details": {}}
    assert msgspec.json.decode(json.dumps(parsed), type=Images).images == (listed.images[1], listed.images[0])


def test_quiet_prints_full_ids_and_headings_can_be_omitted(listed: Printed) -> None:
    assert listed(quiet=True).splitlines() == [each.id for each in listed.images]
    assert len(listed().splitlines()) == 4
    assert [each.split() for each in listed(headers=False).splitlines()] == [
        each.split() for each in listed().splitlines()[1:]
    ]


def test_sentence_of_a_reason_is_in_the_wide_table_only(listed: Printed) -> None:
    assert "pinned in the runtime" not in listed()
    assert "pinned in the runtime" in listed(form="wide")
    assert set(listed().splitlines()[0].split()) < set(listed(form="wide").splitlines()[0].split())


def test_every_tag_is_found_in_a_pipe(listed: Printed) -> None:
    listed.images[0] = image("a", *(f"r/a:{number}" for number in range(20)))
    (line,) = [each for each in listed().splitlines() if "r/a:17" in each]
    assert line.startswith("a ")


def test_empty_list_is_an_empty_output_with_a_message_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    empty = Printed(capsys)
    assert empty() == ""
    request = ListRequest.of(IMAGES, ListOptions())
    document = msgspec.structs.replace(document_of([]), warnings=("layers \x1b unknown",))
    request.print(document, empty="no images", now=NOW)
    assert capsys.readouterr() == ("", "warning: layers \\x1b unknown\nno images\n")
    assert json.loads(empty(form="json"))["images"] == []


@given(st.lists(st.tuples(ANYTHING, ANYTHING), max_size=4), st.sampled_from(["table", "wide", "name"]))
def test_any_name_is_escaped_with_one_line_per_image(names: list[tuple[str, str]], form: str) -> None:
    written: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout.write", written.append, raising=False)
        rows = [image(first, second) for first, second in names]
        ListRequest.of(IMAGES, ListOptions(form)).print(document_of(rows), empty="no images", now=NOW)
    lines = "".join(written).split("\n")[:-1]
    assert [escape(line) for line in lines] == lines
    assert len(lines) == len(names) + (form != "name" and bool(names))


@pytest.mark.parametrize("form", ["table", "name", "json", "jsonpath"])
def test_watched_list_in_a_pipe_is_printed_again_only_after_a_change_of_its_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    in_use = [msgspec.structs.replace(image("a"), last_used=NOW)]  # has the time of each reading while it is in use
    readings = [document_of(in_use), document_of([image("a"), image("b")]), document_of([image("a"), image("b")])]
    request = ListRequest.of(IMAGES, ListOptions(form, expression="{.items[*].id}\n", watch_s=3.0))

    def read() -> Images:
        if not readings:
            raise KeyboardInterrupt
        return readings.pop(0)

    once = len(capsys.readouterr().out)
    with pytest.raises(KeyboardInterrupt):
        request.watch(document_of([image("a")]), read, empty="no images")
    out = capsys.readouterr().out
    request.print(document_of([image("a")]), empty="", now=NOW)
    request.print(document_of([image("a"), image("b")]), empty="", now=NOW)
    assert (once, out, slept) == (0, capsys.readouterr().out, [3.0] * 4)


def test_watched_table_on_a_terminal_overwrites_itself_and_restores_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    monkeypatch.setattr("sys.stdout.write", written.append, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    readings = [msgspec.structs.replace(document_of([]), warnings=("layers \x1b unknown",))]
    with pytest.raises(IndexError):
        ListRequest.of(IMAGES, ListOptions(watch_s=0.0)).watch(
            document_of([image("a")]), lambda: readings.pop(0), empty="no images"
        )
    text = "".join(written)
    assert text.startswith("\x1b[?1049h")
    assert text.endswith("\x1b[?1049l")
    assert "warning: layers \\x1b unknown" in text
    assert "no images" in text


def test_missing_rows_of_a_namespace_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    request = ListRequest.of(PODS, ListOptions(namespace="sh\x1bop", filters=("name=a*",)))
    document = Pods(observed_at=NOW, runtime=document_of([]).runtime, imagefs=None, warnings=(), pods=())
    request.print(document, empty="no pods", now=NOW)
    assert capsys.readouterr() == ("", "no matching pods in namespace sh\\x1bop\n")
