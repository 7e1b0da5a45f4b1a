"""Images that a pass keeps: protected by a rule, newest of their repository, or irreplaceable.

Protection rules select by glob, regular expression or digest. They do not depend on pins in the runtime, since pins can
be lost. The rules are compiled once per set of rules, and all patterns are matched together, so that matching 100,000
images takes a fraction of a second.

An irreplaceable image cannot be pulled again: it was imported or built on this node, has a name under which it was
never pulled, or is from a registry that the configuration lists as unreachable. Its removal is a permanent loss.
Registries are not probed: the agent must not depend on network access, and a reachable registry may deny the pull.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from nodeagent import linear_expression
from nodeagent.gc.plan.image_users import bare_id, digest_of, normalise, repository_of
from nodeagent.model.decision import Reason, ReasonCode
from nodeagent.record import Record
from nodeagent.units import format_duration, format_time

if TYPE_CHECKING:
    from nodeagent.model import Image, ImageUsage, NodeSnapshot

_IMPORTED: Final = "imported or built on this node, never pulled"
_UNKNOWN: Final = Reason(ReasonCode.ORIGIN_UNKNOWN)


class Irreplaceable(StrEnum):
    """Treatment of images that cannot be pulled again.

    ``LAST``: removed only if space is needed, after all other images. ``NEVER``: always kept. ``IGNORE``: removed like
    any other image.
    """

    LAST = "last"
    NEVER = "never"
    IGNORE = "ignore"


def irreplaceable_images(snapshot: NodeSnapshot, unreachable: Sequence[str]) -> dict[str, str]:
    """Return the cause, as text, for every image that is known to be irreplaceable, by image id.

    Args:
        snapshot: snapshot of the node.
        unreachable: registries without access, as ``HOST`` or ``HOST:PORT``; ``*`` matches any text.
    """
    sources = snapshot.image_sources
    if sources is None and not unreachable:
        return {}
    found = {}
    for image in snapshot.images:
        cause = _cause(image, None if sources is None else sources.get(image.id), unreachable)
        if cause:
            found[image.id] = cause
    return found


def describe_origins(snapshot: NodeSnapshot, unreachable: Sequence[str]) -> dict[str, str]:
    """Return the origin of every image as text, by image id: ``pulled``, ``unknown``, or why it cannot be pulled."""
    sources: Collection[str] = snapshot.image_sources or ()
    origins = {each.id: "pulled" if each.id in sources else "unknown" for each in snapshot.images}
    return origins | irreplaceable_images(snapshot, unreachable)


def origin_keep_reasons(
    snapshot: NodeSnapshot, treatment: Irreplaceable, unreachable: Sequence[str]
) -> dict[str, Reason]:
    """Return the reason for every image kept because of its origin, by image id.

    An image of unknown origin is kept too. If the runtime reports no origin for any image, images of unknown origin are
    kept only with ``NEVER``.
    """
    if treatment is Irreplaceable.IGNORE:
        return {}
    sources = snapshot.image_sources
    never = treatment is Irreplaceable.NEVER
    kept: dict[str, Reason] = {}
    if sources is not None or never:
        known: Collection[str] = () if sources is None else sources
        kept = {image.id: _UNKNOWN for image in snapshot.images if image.id not in known}
    if never:
        causes = irreplaceable_images(snapshot, unreachable)
        kept |= {image_id: Reason(ReasonCode.IRREPLACEABLE, {"how": how}) for image_id, how in causes.items()}
    return kept


def origin_warning(snapshot: NodeSnapshot, treatment: Irreplaceable, *, removes: bool) -> str:
    """Return the plan warning for a runtime that does not report the origin of images; empty without a warning."""
    if snapshot.image_sources is not None or treatment is Irreplaceable.IGNORE or not snapshot.images:
        return ""
    unknown = "origin of images unknown: not reported by this runtime through CRI"
    if treatment is Irreplaceable.NEVER:
        return f'no image is removed: {unknown}, and image_gc.irreplaceable = "never"'
    return f"{unknown}; imported images are removed like others" if removes else ""


def _cause(image: Image, sources: frozenset[str] | None, unreachable: Sequence[str]) -> str:
    """Return the cause why an image cannot be pulled again; empty if it can be pulled or its origin is unknown."""
    names = image.repo_tags or image.repo_digests
    if sources is not None:
        if not sources:
            return _IMPORTED
        for name in names:
            repository = repository_of(name)
            if repository not in sources and _source_of(name) not in sources:
                return f"never pulled as {repository}"
    for name in names if unreachable else ():
        registry = normalise(name).partition("/")[0]
        if any(linear_expression.glob_search(pattern)(registry) for pattern in unreachable):
            return f"registry {registry} is unreachable"
    return ""


def _source_of(reference: str) -> str:
    """Return the repository of a reference as recorded by containerd: with the registry host, without its port.

    Source: containerd ``AppendDistributionSourceLabel``.
    """
    registry, _, path = repository_of(normalise(reference)).partition("/")
    host = registry.partition("]")[0].removeprefix("[") if registry.startswith("[") else registry.partition(":")[0]
    return f"{host}/{path}"


def removal_reason(how: str, *, all_unused: bool) -> Reason:
    """Return the reason to remove an irreplaceable image, which is removed after all other images."""
    code = ReasonCode.IRREPLACEABLE_UNUSED if all_unused else ReasonCode.IRREPLACEABLE_LAST
    return Reason(code, {"how": how})


def with_last_reasons(kept: Mapping[str, Reason], last: Mapping[str, str]) -> dict[str, Reason]:
    """Return the reasons ``kept``; irreplaceable images kept because space suffices get their cause as reason."""
    replaced = {}
    for image_id, how in last.items():
        reason = kept.get(image_id)
        if reason is not None and reason.code in _NOT_NEEDED:
            replaced[image_id] = Reason(ReasonCode.IRREPLACEABLE_LATER, {"how": how})
    return {**kept, **replaced}


_NOT_NEEDED: Final = frozenset(
    {
        ReasonCode.ENOUGH_FREED,
        ReasonCode.BELOW_HIGH_THRESHOLD,
        ReasonCode.THRESHOLD_DISABLED,
        ReasonCode.COLLECTION_PENDING,
    }
)


EXPRESSION_PREFIX: Final = "regex:"
DIGEST_PREFIXES: Final = ("sha256:", "sha512:", "digest:")
RULE_FORM: Final = (
    "a pattern such as registry.example/team/*, regex: and an expression of RE2, or sha256: and 64 hexadecimal digits"
)
_SHOWN: Final = 80
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class RuleKind(StrEnum):
    """Match type of a protection rule."""

    GLOB = "glob"
    REGEX = "regex"
    DIGEST = "digest"


class ProtectionRule(Record):
    """A configured pattern, expression or digest that protects images.

    Attributes:
        text: the rule as configured, for display.
        kind: match type.
        value: the pattern, the expression or the digest.
    """

    text: str
    kind: RuleKind
    value: str


def parse_rule(text: str) -> ProtectionRule:
    """Return the protection rule parsed from ``text``, in one of three forms.

    - ``regex:EXPRESSION``, in RE2 syntax, is searched in every reference as listed by the runtime; ``^`` and ``$``
      anchor the expression.
    - ``sha256:DIGEST`` or ``digest:sha256:DIGEST`` matches an image by its id or by the digest of one of its
      references.
    - Any other text is a case-sensitive glob with ``*``, ``?`` and ``[...]``; ``*`` also matches slashes. The glob must
      match the complete reference (``registry.k8s.io/pause:3.9``) or the reference without tag and digest
      (``registry.k8s.io/pause``). For Docker Hub, the short form of the reference matches too (``nginx:1.27``,
      ``nginx``). Therefore ``registry.k8s.io/pause`` and ``*/pause`` protect all tags, and ``pause`` protects only the
      image on Docker Hub.

    Raises:
        ValueError: the rule is not valid; the message lists the allowed forms.
    """
    stripped = text.strip()
    if stripped.startswith(EXPRESSION_PREFIX):
        return _regex_rule(stripped)
    if stripped.startswith(DIGEST_PREFIXES):
        digest = stripped.removeprefix("digest:")
        if _DIGEST.fullmatch(digest) is None:
            raise ValueError(f"{text!r} is not a full digest: write {RULE_FORM}")
        return ProtectionRule(stripped, RuleKind.DIGEST, digest)
    if not stripped:
        raise ValueError(f"empty rule: write {RULE_FORM}")
    try:
        linear_expression.expression_of_glob(stripped)
    except linear_expression.ExpressionError as error:
        raise ValueError(f"{stripped[:_SHOWN]!r} is not a pattern: {error}: write {RULE_FORM}") from error
    return ProtectionRule(stripped, RuleKind.GLOB, stripped)


def length_from_wildcard(text: str) -> int:
    """Return the characters of a pattern from its first wildcard on, to which its run time is proportional."""
    return len(text) - len(re.split(r"[*?[]", text, maxsplit=1)[0])


def _regex_rule(text: str) -> ProtectionRule:
    expression = text.removeprefix(EXPRESSION_PREFIX)
    if not expression:
        raise ValueError(f"{text!r} has no expression: write {RULE_FORM}")
    try:
        linear_expression.check_expression(expression)
    except linear_expression.ExpressionError as error:
        raise ValueError(f"{expression!r} is not a regular expression: {error}: write {RULE_FORM}") from error
    return ProtectionRule(text, RuleKind.REGEX, expression)


class ProtectionPolicy(Record):
    """Configured protection of images, independent of their age.

    Attributes:
        rules: protection rules in order; the first matching rule is reported in the reason.
        keep_last_n_tags_per_repository: number of newest images to keep per repository; 0 disables the rule.
        irreplaceable: treatment of images that cannot be pulled again.
        unreachable_registries: registries without access; see ``irreplaceable_images``.
    """

    rules: tuple[ProtectionRule, ...] = ()
    keep_last_n_tags_per_repository: int = 0
    irreplaceable: Irreplaceable = Irreplaceable.LAST
    unreachable_registries: tuple[str, ...] = ()

    def reasons(self, images: Sequence[Image], usage: Mapping[str, ImageUsage]) -> dict[str, Reason]:
        """Return the reason for every protected image, by image id; rules precede the newest images of a repository."""
        found = self._newest(images, usage) if self.keep_last_n_tags_per_repository > 0 else {}
        if self.rules:
            first = Matcher.of(self.rules).first
            for image in images:
                matched = first(image)
                if matched is not None:
                    rule, reference = self.rules[matched[0]], matched[1]
                    found[image.id] = Reason(ReasonCode.PROTECTED, {"rule": rule.text, "matched": reference})
        return found

    def _newest(self, images: Sequence[Image], usage: Mapping[str, ImageUsage]) -> dict[str, Reason]:
        """Return the reason to keep the newest images of each repository, by image id.

        An image counts for the repositories of all its tags and digests. Images are compared by first detection, then
        by pull, then by last use, then by id.
        """
        keep = self.keep_last_n_tags_per_repository
        members: defaultdict[str, list[Image]] = defaultdict(list)
        for image in images:
            named: list[str] = []
            for reference in image.references:
                repository = repository_of(reference)
                if repository not in named:
                    named.append(repository)
                    members[repository].append(image)

        def age(image: Image) -> tuple[datetime, datetime, datetime, str]:
            known = usage.get(image.id)
            if known is None:
                return _LATEST, _NEVER, _NEVER, image.id
            return known.first_detected, known.pulled_at or _NEVER, known.last_used or _NEVER, image.id

        found: dict[str, Reason] = {}
        for repository in sorted(members):
            newest = members[repository]
            if len(newest) > keep:
                newest = nlargest(keep, newest, key=age)
            reason = Reason(ReasonCode.NEWEST_TAGS, {"keep": keep, "repository": repository})
            for image in newest:
                found.setdefault(image.id, reason)
        return found


class Matcher:
    """Matcher compiled from a sequence of protection rules."""

    def __init__(self, rules: tuple[ProtectionRule, ...]) -> None:
        """Compile the rules."""
        self._expressions = linear_expression.ExpressionSet([_expression(rule) for rule in rules])
        self._digests: dict[str, int] = {}
        for place, rule in enumerate(rules):
            if rule.kind is RuleKind.DIGEST:
                for form in _both_forms(rule.value):
                    self._digests.setdefault(form, place)

    @staticmethod
    @lru_cache(maxsize=8)
    def of(rules: tuple[ProtectionRule, ...]) -> Matcher:
        """Return the cached matcher for ``rules``."""
        return Matcher(rules)

    def first(self, image: Image) -> tuple[int, str] | None:
        """Return the position of the first rule that matches ``image``, and the matched reference or id."""
        found = [(place, each) for each in image.references for place in self._expressions.matches(each)]
        if self._digests:
            forms = ((image.id, image.id), *((each, digest_of(each)) for each in image.repo_digests))
            found += [(self._digests[digest], each) for each, digest in forms if digest in self._digests]
        return min(found, key=itemgetter(0), default=None)


def _expression(rule: ProtectionRule) -> str:
    """Return a rule as expression; a glob has an optional Docker Hub prefix and an optional tag and digest."""
    match rule.kind:
        case RuleKind.GLOB:
            glob = linear_expression.expression_of_glob(rule.value)
            return rf"\A(?:docker\.io/(?:library/)?)?{glob}(?::[^/@:]*)?(?:@[^/]*)?\z"
        case RuleKind.REGEX:
            return rule.value
        case RuleKind.DIGEST:
            return linear_expression.NO_MATCH


def _both_forms(digest: str) -> tuple[str, str]:
    """Return a digest with and without ``sha256:``, since runtimes list image ids in both forms."""
    return digest, bare_id(digest)


def describe_gap(started_at: datetime | None, ended_at: datetime, cause: str) -> str:
    """Return the text for the last gap in the observation of image use: its length, end and cause."""
    length = "" if started_at is None else f" of {format_duration((ended_at - started_at).total_seconds())}"
    return f"last gap{length} until {format_time(ended_at)} ({cause})"
