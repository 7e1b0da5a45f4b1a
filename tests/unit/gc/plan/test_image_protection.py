"""Configured rules that protect images: patterns, regular expressions, digests, newest tags."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given, strategies as st

from nodeagent.gc.plan.image_protection import Matcher, ProtectionPolicy, RuleKind, parse_rule
from nodeagent.linear_expression import glob_search
from nodeagent.model.runtime import Image, ImageUsage
from tests.unit.builders import ago, used

HEX = "0123456789abcdef" * 4
PAUSE = Image("sha256:" + HEX, ("registry.k8s.io/pause:3.9",), (f"registry.k8s.io/pause@sha256:{'f' * 64}",))
HUB = Image("sha256:" + "1" * 64, ("docker.io/library/nginx:1.27", "docker.io/team/app:2"))
PORT = Image("sha256:" + "2" * 64, ("reg.example:5000/team/app:v1",))
UNTAGGED = Image("3" * 64)
LABELLED = Image("4" * 64, labels=frozenset({("team", "db=1"), ("team", None), ("empty", ""), ("empty", None)}))


@pytest.mark.parametrize(
    ("rule", "image", "matched"),
    [
        pytest.param("registry.k8s.io/pause:3.9", PAUSE, "registry.k8s.io/pause:3.9", id="whole reference"),
        pytest.param("registry.k8s.io/pause", PAUSE, "registry.k8s.io/pause:3.9", id="all tags of a repository"),
        pytest.param("*/pause", PAUSE, "registry.k8s.io/pause:3.9", id="any registry"),
        pytest.param("registry.k8s.io/*", PAUSE, "registry.k8s.io/pause:3.9", id="an asterisk matches tags"),
        pytest.param("registry.k8s.io/pause:3.?", PAUSE, "registry.k8s.io/pause:3.9", id="one character"),
        pytest.param("registry.k8s.io/pause:[0-4].9", PAUSE, "registry.k8s.io/pause:3.9", id="a class"),
        pytest.param("registry.k8s.io/paus", PAUSE, "", id="the pattern must match the whole name"),
        pytest.param("pause", PAUSE, "", id="a bare name means Docker Hub"),
        pytest.param("Registry.k8s.io/pause", PAUSE, "", id="case counts"),
        pytest.param("registry.k8s.io", PAUSE, "", id="a registry alone is not a repository"),
        pytest.param("*@sha256:ffff*", PAUSE, f"registry.k8s.io/pause@sha256:{'f' * 64}", id="digest reference"),
        pytest.param("nginx", HUB, "docker.io/library/nginx:1.27", id="bare name"),
        pytest.param("nginx:1.*", HUB, "docker.io/library/nginx:1.27", id="bare name with tag"),
        pytest.param("docker.io/library/nginx", HUB, "docker.io/library/nginx:1.27", id="Docker Hub in full"),
        pytest.param("team/app", HUB, "docker.io/team/app:2", id="Docker Hub without registry"),
        pytest.param("team/*", PORT, "", id="another registry does not match"),
        pytest.param("reg.example:5000/team/app", PORT, "reg.example:5000/team/app:v1", id="a port is not a tag"),
        pytest.param("reg.example", PORT, "", id="a path after the port is not a tag"),
        pytest.param("reg.example*/app", PORT, "reg.example:5000/team/app:v1", id="an asterisk matches slashes"),
        pytest.param(
            r"regex:^reg\.example", PORT, "reg.example:5000/team/app:v1", id="a regular expression matches anywhere"
        ),
        pytest.param("regex:team/(a|b)pp:v[0-9]$", PORT, "reg.example:5000/team/app:v1", id="regex anywhere"),
        pytest.param("regex:^team", PORT, "", id="regex anchored"),
        pytest.param(f"sha256:{HEX}", PAUSE, PAUSE.id, id="image id"),
        pytest.param(f"digest:sha256:{HEX}", PAUSE, PAUSE.id, id="image id, prefixed"),
        pytest.param(f"sha256:{'f' * 64}", PAUSE, f"registry.k8s.io/pause@sha256:{'f' * 64}", id="repo digest"),
        pytest.param(f"sha256:{'3' * 64}", UNTAGGED, UNTAGGED.id, id="id listed without sha256"),
        pytest.param("*", UNTAGGED, "", id="an image without a name matches no pattern"),
        pytest.param("label:team=db=1", LABELLED, "label team=db=1", id="label"),
        pytest.param("label:team", LABELLED, "label team", id="label with any value"),
        pytest.param("label:empty=", LABELLED, "label empty=", id="label with an empty value"),
        pytest.param("label:team=", LABELLED, "", id="label with another value"),
        pytest.param("label:team=*", LABELLED, "", id="an asterisk in a label has no meaning"),
        pytest.param("label:Team", LABELLED, "", id="case counts in labels"),
        pytest.param("label:team", PAUSE, "", id="image without labels"),
    ],
)
def test_rule_matches_by_pattern_expression_or_digest(rule: str, image: Image, matched: str) -> None:
    parsed = parse_rule(rule)
    assert Matcher.of((parsed,)).first(image) == ((0, matched) if matched else None)
    reasons = ProtectionPolicy((parsed,)).reasons((image,), {})
    assert bool(reasons) == bool(matched)
    if matched:
        assert reasons[image.id].sentence == f"protected by {rule}, which matches {matched}"


def test_reason_has_the_first_matching_rule() -> None:
    policy = ProtectionPolicy(tuple(map(parse_rule, ("nothing/*", "regex:pause", "*/pause"))))
    (reason,) = policy.reasons((PAUSE, HUB), {}).values()
    assert reason.details["rule"] == "regex:pause"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty rule: write "),
        ("  ", "empty rule"),
        ("regex:", "has no expression: write "),
        ("regex:a(b", r"'a\(b' is not a regular expression: missing \): a\(b: write "),
        ("regex:*", "no argument for repetition operator"),
        ("regex:(?!a)b", "without look-around, back references"),
        (r"regex:(a)\1", "without look-around, back references"),
        ("regex:" + "a" * 513, "513 characters, more than 512"),
        ("regex:((a{0,30}){0,30})#", r"too large \(1834 instructions, at most 300\): use fewer repetitions"),
        ("regex:a{0,1000}{0,1000}", "is not a regular expression"),
        ("a" * 257, "'aaaa.*' is not a pattern: 257 characters, more than 256: write a pattern such as"),
        ("regex:\udcff", "is not a regular expression: "),
        ("label:", "'label:' has no key: write a pattern such as"),
        ("label:=value", "has no key"),
        ("sha256:abc", "'sha256:abc' is not a full digest: write a pattern such as"),
        ("digest:nginx", "is not a full digest"),
        ("sha256:" + "G" * 64, "is not a full digest"),
    ],
)
def test_invalid_rule_is_rejected_with_the_allowed_forms(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_rule(text)


def test_equal_rules_have_equal_hashes() -> None:
    assert parse_rule(" nginx ") == parse_rule("nginx")
    assert parse_rule("regex:x").kind is RuleKind.REGEX
    assert len({parse_rule("a"), parse_rule("a"), parse_rule("b")}) == 2


def tagged(image_id: str, *references: str) -> Image:
    return Image(image_id, tuple(r for r in references if "@" not in r), tuple(r for r in references if "@" in r))


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (0, set()),
        (1, {"new", "other"}),
        (2, {"new", "mid", "other", "both"}),
        (9, {"new", "mid", "old", "other", "both"}),
    ],
)
def test_newest_images_of_each_repository_are_kept(keep: int, kept: set[str]) -> None:
    images = (
        tagged("old", "r.io:5000/app:1"),
        tagged("mid", "r.io:5000/app:2"),
        tagged("new", "r.io:5000/app@sha256:3"),
        tagged("other", "r.io:5000/web:1"),
        tagged("both", "r.io:5000/web:0", "r.io:5000/app:0"),
    )
    ages = {"old": 400, "mid": 300, "new": 200, "other": 100, "both": 500}
    usage = {image_id: used(seen_s=age) for image_id, age in ages.items()}
    reasons = ProtectionPolicy(keep_last_n_tags_per_repository=keep).reasons(images, usage)
    assert set(reasons) == kept
    if keep == 1:
        assert reasons["new"].sentence == "among the newest 1 image(s) of r.io:5000/app"


def test_newest_is_by_detection_then_use_then_id() -> None:
    images = tuple(tagged(name, "r/app:" + name) for name in ("a", "b", "c", "d"))
    same = ago(50)
    usage = {
        "a": ImageUsage(same),
        "b": ImageUsage(same, ago(10)),
        "c": ImageUsage(same, ago(10)),
        "d": ImageUsage(ago(60), ago(1)),
    }
    policy = ProtectionPolicy(keep_last_n_tags_per_repository=2)
    assert set(policy.reasons(images, usage)) == {"b", "c"}
    assert set(ProtectionPolicy(keep_last_n_tags_per_repository=1).reasons(images[::-1], usage)) == {"c"}


def test_image_without_recorded_use_is_the_newest() -> None:
    images = (tagged("known", "r/app:1"), tagged("unknown", "r/app:2"))
    policy = ProtectionPolicy(keep_last_n_tags_per_repository=1)
    assert set(policy.reasons(images, {"known": used(seen_s=1)})) == {"unknown"}


def test_rule_has_precedence_over_newest_tags() -> None:
    policy = ProtectionPolicy((parse_rule("*/pause"),), keep_last_n_tags_per_repository=1)
    assert policy.reasons((PAUSE,), {})[PAUSE.id].code.value == "protected"


@pytest.mark.parametrize("expression", [r"^(([a-z./0-9:-])+)+#$", "(a+)+$", "(a|aa)+$", "(.*a){20}#"])
def test_expression_that_backtracks_for_hours_in_other_engines_ends(expression: str) -> None:
    names = [f"registry.example.com/{'a' * 200}/app{number}:v1" for number in range(100)]
    policy = ProtectionPolicy((parse_rule(f"regex:{expression}"),))
    assert policy.reasons([tagged(name, name) for name in names], {}) == {}


_GLOB_CHARACTERS = st.text("ab:/@*?[]!-^\\\né", max_size=12)


@given(glob=_GLOB_CHARACTERS, text=_GLOB_CHARACTERS)
@example(glob="[]a]", text="]")
@example(glob="[!]", text="[!]")
@example(glob="[b-a]", text="a")
@example(glob="[!b-a]", text="a")
@example(glob="*[", text="a[")
def test_glob_matches_as_in_a_shell(glob: str, text: str) -> None:
    assert glob_search(glob)(text) == fnmatchcase(text, glob)


def test_rules_too_large_for_one_set_match_one_by_one() -> None:
    rules = (*(parse_rule(f"*{'?' * 200}{number}") for number in range(600)), parse_rule("r/a"), parse_rule("*"))
    policy = ProtectionPolicy(rules)
    (reason,) = policy.reasons([tagged("i", "r/a:1")], {}).values()
    assert reason.details["rule"] == "r/a"


def test_expression_matches_names_that_are_not_valid_text() -> None:
    (matched,) = ProtectionPolicy((parse_rule("regex:^r/é.*app"),)).reasons([tagged("i", "r/é\udcffapp:v1")], {})
    assert matched == "i"
