"""Images that a pass keeps, and the keep rules in their order of precedence.

Protection rules select by glob, regular expression, digest or label. They do not depend on pins in the runtime, since
pins can be lost. The rules are compiled once per set of rules, and all patterns are matched together, so that matching
100,000 images takes a fraction of a second.

An irreplaceable image cannot be pulled again: it was imported or built on this node, has a name under which it was
never pulled, or is from a registry that the configuration lists as unreachable. Its removal is a permanent loss.
Registries are not probed: the agent must not depend on network access, and a reachable registry may deny the pull.

Keep rules apply regardless of the age of an image and the usage of the filesystem. :data:`KEEP_RULES` lists them; the
first matching rule determines the reason of the decision. A new rule needs an entry in ``KEEP_RULES``, a reason code
with its sentence in ``model/reason_codes.py``, and a test. Rules that depend on age, usage or the limits of a pass are
part of the plan itself (``images``).

Each rule returns all images that it keeps. Rejected alternative: a predicate per rule and image, which needs more than
ten calls for each of 100,000 images, although few images match a rule.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from nodeagent import linear_expression
from nodeagent.errors import UsageError
from nodeagent.gc.plan.image_users import (
    ImageIndex,
    ImageUsers,
    bare_id,
    digest_of,
    find_users,
    in_use_reason,
    is_named_like_pause,
    normalise,
    repository_of,
    similar_names,
)
from nodeagent.last_result import keep_last_result
from nodeagent.model.decision import NO_FAILURES, Reason, ReasonCode
from nodeagent.model.runtime import Image
from nodeagent.record import Record, replace
from nodeagent.units import format_duration, format_time

if TYPE_CHECKING:
    from nodeagent.model.clock import ClockTrust
    from nodeagent.model.node import Hold, NodeSnapshot
    from nodeagent.model.runtime import HeldContent, ImageUsage, Label

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
    return _causes(tuple(snapshot.images), snapshot.image_sources, tuple(unreachable))


@keep_last_result
def _causes(
    images: tuple[Image, ...], sources: Mapping[str, frozenset[str]] | None, unreachable: tuple[str, ...]
) -> dict[str, str]:
    if sources is None and not unreachable:
        return {}
    found = {}
    for image in images:
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
LABEL_PREFIX: Final = "label:"
DIGEST_PREFIXES: Final = ("sha256:", "sha512:", "digest:")
RULE_FORM: Final = (
    "a pattern such as registry.example/team/*, regex: and an expression of RE2, sha256: and 64 hexadecimal digits, or "
    "label:KEY or label:KEY=VALUE"
)
_SHOWN: Final = 80
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class RuleKind(StrEnum):
    """Match type of a protection rule."""

    GLOB = "glob"
    REGEX = "regex"
    DIGEST = "digest"
    LABEL = "label"


class ProtectionRule(Record):
    """A configured pattern, expression, digest or label that protects images.

    Attributes:
        text: the rule as configured, for display.
        kind: match type.
        value: the pattern, the expression, the digest, or the label as ``KEY`` or ``KEY=VALUE``.
    """

    text: str
    kind: RuleKind
    value: str


def parse_rule(text: str) -> ProtectionRule:
    """Return the protection rule parsed from ``text``, in one of four forms.

    - ``regex:EXPRESSION``, in RE2 syntax, is searched in every reference as listed by the runtime; ``^`` and ``$``
      anchor the expression.
    - ``sha256:DIGEST`` or ``digest:sha256:DIGEST`` matches an image by its id or by the digest of one of its
      references.
    - ``label:KEY=VALUE`` matches an image with exactly this label in its config, or on one of its names in containerd;
      ``label:KEY`` matches any value.
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
        if DIGEST.fullmatch(digest) is None:
            raise ValueError(f"{text!r} is not a full digest: write {RULE_FORM}")
        return ProtectionRule(stripped, RuleKind.DIGEST, digest)
    if stripped.startswith(LABEL_PREFIX):
        label = stripped.removeprefix(LABEL_PREFIX)
        if not _label(label)[0]:
            raise ValueError(f"{text!r} has no key: write {RULE_FORM}")
        return ProtectionRule(stripped, RuleKind.LABEL, label)
    if not stripped:
        raise ValueError(f"empty rule: write {RULE_FORM}")
    try:
        linear_expression.expression_of_glob(stripped)
    except linear_expression.ExpressionError as error:
        raise ValueError(f"{stripped[:_SHOWN]!r} is not a pattern: {error}: write {RULE_FORM}") from error
    return ProtectionRule(stripped, RuleKind.GLOB, stripped)


def labels_named(texts: Iterable[str]) -> frozenset[Label]:
    """Return the labels that rules, holds or patterns name, given as texts."""
    return frozenset(
        _label(each.strip().removeprefix(LABEL_PREFIX)) for each in texts if each.strip().startswith(LABEL_PREFIX)
    )


def _label(text: str) -> Label:
    key, has_value, value = text.partition("=")
    return key, value if has_value else None


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
        self._labels: dict[Label, int] = {}
        for place, rule in enumerate(rules):
            if rule.kind is RuleKind.DIGEST:
                for form in _both_forms(rule.value):
                    self._digests.setdefault(form, place)
            elif rule.kind is RuleKind.LABEL:
                self._labels.setdefault(_label(rule.value), place)

    @staticmethod
    @lru_cache(maxsize=8)
    def of(rules: tuple[ProtectionRule, ...]) -> Matcher:
        """Return the cached matcher for ``rules``."""
        return Matcher(rules)

    def first(self, image: Image) -> tuple[int, str] | None:
        """Return the position of the first rule that matches ``image``, and the matched reference, id or label."""
        found = [(place, each) for each in image.references for place in self._expressions.matches(each)]
        if self._digests:
            forms = ((image.id, image.id), *((each, digest_of(each)) for each in image.repo_digests))
            found += [(self._digests[digest], each) for each, digest in forms if digest in self._digests]
        if self._labels:
            found += [(place, f"label {_shown(each)}") for each, place in self._labels.items() if each in image.labels]
        return min(found, key=itemgetter(0), default=None)


def _shown(label: Label) -> str:
    key, value = label
    return key if value is None else f"{key}={value}"


def _expression(rule: ProtectionRule) -> str:
    """Return a rule as expression; a glob has an optional Docker Hub prefix and an optional tag and digest."""
    match rule.kind:
        case RuleKind.GLOB:
            glob = linear_expression.expression_of_glob(rule.value)
            return rf"\A(?:docker\.io/(?:library/)?)?{glob}(?::[^/@:]*)?(?:@[^/]*)?\z"
        case RuleKind.REGEX:
            return rule.value
        case RuleKind.DIGEST | RuleKind.LABEL:
            return linear_expression.NO_MATCH


def _both_forms(digest: str) -> tuple[str, str]:
    """Return a digest with and without ``sha256:``, since runtimes list image ids in both forms."""
    return digest, bare_id(digest)


def describe_gap(started_at: datetime | None, ended_at: datetime, cause: str) -> str:
    """Return the text for the last gap in the observation of image use: its length, end and cause."""
    length = "" if started_at is None else f" of {format_duration((ended_at - started_at).total_seconds())}"
    return f"last gap{length} until {format_time(ended_at)} ({cause})"


def held_images(snapshot: NodeSnapshot, index: ImageIndex) -> dict[str, Reason]:
    """Return the reason to keep each held image, by image id; the hold with the latest expiry if there are several."""
    holds = sorted(snapshot.holds, key=lambda each: (each.until, each.id), reverse=True)
    reasons = [
        Reason(ReasonCode.HELD, {"hold": each.id, "by": each.by, "until_at": each.until, "why": each.why})
        for each in holds
    ]
    first = images_named([each.image for each in holds], snapshot.images, index)
    return {image_id: reasons[place] for image_id, place in first.items()}


def holds_in_force(holds: Iterable[Hold], clock: ClockTrust, now: datetime) -> tuple[Hold, ...]:
    """Return the holds that have not expired; ``now`` is the wall-clock time of the reading ``clock``."""
    return tuple(hold for hold in holds if not has_ended(hold, clock, now))


def has_ended(hold: Hold, clock: ClockTrust, now: datetime) -> bool:
    """Return whether a hold has expired.

    In the boot in which the hold was placed, its duration is measured by the boot clock. In later boots, its expiry is
    compared with ``clock.expiry_now``; while this time is unknown, no hold expires.
    """
    left_s = left_in_boot_s(hold, clock)
    if left_s is not None:
        return left_s <= 0
    expiry_now = now if clock.boottime_s is None else clock.expiry_now
    return expiry_now is not None and hold.until <= expiry_now


def left_in_boot_s(hold: Hold, clock: ClockTrust) -> float | None:
    """Return the remaining seconds of a hold in the boot in which it was placed; ``None`` in another boot."""
    if hold.placed_s is None or clock.boottime_s is None or not hold.boot_id or hold.boot_id != clock.boot_id:
        return None
    return hold.duration_s - (clock.boottime_s - hold.placed_s)


def images_named(texts: Sequence[str], images: Sequence[Image], index: ImageIndex) -> dict[str, int]:
    """Return the images matched by texts of holds, by id, each with the position of its first text.

    A text matches by reference, by id or as a protection rule. ``ALL_IMAGES``, and a rule that only an earlier version
    accepted, such as an expression with look-ahead or a longer pattern, match every image.
    """
    if not texts:  # as on most nodes: no image has to be compared
        return {}
    every, rules = len(texts), []
    for place, text in enumerate(texts):
        try:
            rule = parse_rule(text)
        except ValueError:
            rule = ProtectionRule(text, RuleKind.DIGEST, text)  # a shortened digest, which only the index resolves
            if not text.startswith(DIGEST_PREFIXES):
                every = min(every, place)
        rules.append(rule)
    first = Matcher.of(tuple(rules)).first
    found = [(every, image.id) for image in images if every < len(texts)]
    found += [(matched[0], image.id) for image in images if (matched := first(image)) is not None]
    found += [(place, image_id) for place, text in enumerate(texts) for image_id in index.resolve(text)]
    return {image_id: place for place, image_id in sorted(found, reverse=True)}


def select_images(patterns: Iterable[str], images: Sequence[Image], index: ImageIndex) -> frozenset[str]:
    """Return the ids of the images that a user selects for removal, each by at least one of the patterns.

    A label and a pattern with a wildcard match like a protection rule, any other text as in :meth:`ImageIndex.resolve`.
    Some forms that are in use there match no image here, since a removal needs certainty: a shortened id of several
    images, of less than four digits, or that is the name of another image, and a name with an unknown or shortened
    digest.

    Raises:
        UsageError: a pattern is invalid, matches no image, or is a shortened id that is not certain.
    """
    selected: set[str] = set()
    for pattern in patterns:
        found = _selected_by(pattern, images, index)
        if not found:
            similar = similar_names(images, pattern)
            hint = f"did you mean {' or '.join(similar)}?" if similar else "'nodeagent images' lists the names"
            raise UsageError(f"no image on this node matches {pattern}; nothing was removed; {hint}")
        selected |= found
    return frozenset(selected)


_SHORTEST_ID: Final = 4
"""Digits of an id below which a removal is refused: a number is a likely mistake, such as a wrong shell variable."""


def _selected_by(pattern: str, images: Sequence[Image], index: ImageIndex) -> set[str]:
    if length_from_wildcard(pattern) or pattern.startswith(LABEL_PREFIX):
        try:
            rule = parse_rule(pattern)
        except ValueError as error:
            raise UsageError(f"{error}; nothing was removed") from error
        if rule.kind not in (RuleKind.GLOB, RuleKind.LABEL):
            raise UsageError(f"{pattern}: expressions select no image; nothing was removed; use a name with *")
        first = Matcher.of((rule,)).first
        return {image.id for image in images if first(image) is not None}
    digest = digest_of(pattern)
    named = {*index.resolve_named(digest or pattern)}
    begun = set() if digest or bare_id(pattern) in map(bare_id, named) else index.with_id_prefix(pattern)
    if not begun or named == begun:
        return named
    if named:
        raise UsageError(
            f"{pattern} is a name and the beginning of an image id; nothing was removed; add a tag or digits"
        )
    if len(begun) > 1:
        raise UsageError(f"{pattern} is the beginning of {len(begun)} image ids; nothing was removed; add digits")
    if len(bare_id(pattern)) < _SHORTEST_ID:
        raise UsageError(
            f"{pattern} is the beginning of an image id; nothing was removed; give at least {_SHORTEST_ID} digits"
        )
    return begun


_PINNED = Reason(ReasonCode.PINNED)
_CONFIGURED = Reason(ReasonCode.SANDBOX_IMAGE, {"how": "configured in the runtime"})
_NAMED_LIKE_PAUSE = Reason(ReasonCode.SANDBOX_IMAGE, {"how": "named like a pause image"})
_NOT_IN_PLAN = Reason(ReasonCode.NOT_IN_PLAN)


class KeepContext(Record):
    """Inputs of the keep rules for one plan.

    Attributes:
        users: containers and sandboxes that use each image of the snapshot.
        protection: the protection rules.
        failed: cause of the failure by image id, for removals that failed earlier in this pass.
        only: ids of the images that an applied plan or the user selects for removal; ``None`` for all images.
        pause_images: ids of the images named like a pause image.
    """

    snapshot: NodeSnapshot
    users: ImageUsers
    protection: ProtectionPolicy
    failed: Mapping[str, str]
    only: frozenset[str] | None
    pause_images: frozenset[str]


class KeepRule(Record):
    """A rule that keeps images.

    Attributes:
        codes: reason codes that the rule returns.
        find: function that returns the reason for every image that the rule keeps, by image id.
    """

    codes: tuple[ReasonCode, ...]
    find: Callable[[KeepContext], Mapping[str, Reason]]


def _in_use(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images referenced by a container, in any state, or by a sandbox."""
    return _in_use_reasons(context.users)


@keep_last_result
def _in_use_reasons(users: ImageUsers) -> Mapping[str, Reason]:
    return {image_id: in_use_reason(image_id, users) for image_id in users.images}


def _pinned(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images pinned in the runtime."""
    return {image.id: _PINNED for image in context.snapshot.images if image.pinned}


def _sandbox_images(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep sandbox images: the configured image, and images named like a pause image.

    The name is needed because containerd 2 does not report the configured sandbox image.
    """
    configured = context.users.index.resolve_all(context.snapshot.sandbox_images)
    return dict.fromkeys(context.pause_images, _NAMED_LIKE_PAUSE) | dict.fromkeys(configured, _CONFIGURED)


def _named_by_pods(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images named by static manifests and by pods bound to this node.

    A container of the pod may need the image next.
    """
    pods: defaultdict[str, set[str]] = defaultdict(set)
    for reference, named_by in context.snapshot.pod_images.named.items():
        for image_id in context.users.index.resolve_named(reference):
            pods[image_id].update(named_by)
    return {
        image_id: Reason(ReasonCode.NAMED_BY_POD, {"count": len(named_by), "pods": tuple(sorted(named_by))})
        for image_id, named_by in pods.items()
    }


def _protected(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images matched by a protection rule, and the newest images of each repository."""
    return context.protection.reasons(context.snapshot.images, context.snapshot.image_usage)


def _irreplaceable(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images of unknown origin and, if configured, images that cannot be pulled again."""
    protection = context.protection
    return origin_keep_reasons(context.snapshot, protection.irreplaceable, protection.unreachable_registries)


def _held(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images matched by a hold that has not expired."""
    return held_images(context.snapshot, context.users.index)


def _labels_unknown(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images whose labels are unknown, while a rule or a hold names a label."""
    snapshot = context.snapshot
    asked = labels_named([rule.text for rule in context.protection.rules] + [hold.image for hold in snapshot.holds])
    reading = snapshot.label_reading
    if asked <= reading.asked:
        return {
            image_id: Reason(ReasonCode.LABELS_UNKNOWN, {"detail": cause})
            for image_id, cause in (reading.unread.items() if asked else ())
        }
    not_read = Reason(ReasonCode.LABELS_UNKNOWN, {"detail": "not read in this observation"})
    return {image.id: not_read for image in snapshot.images}


def _not_in_plan(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images that neither the applied plan nor the user selects for removal."""
    if context.only is None:
        return {}
    return {image.id: _NOT_IN_PLAN for image in context.snapshot.images if image.id not in context.only}


def _failed(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to exclude images whose removal failed earlier in this pass."""
    return {
        image_id: Reason(ReasonCode.FAILED_EARLIER, {"detail": detail}) for image_id, detail in context.failed.items()
    }


def _used_since(context: KeepContext) -> Mapping[str, Reason]:
    """Return the reasons to keep images with a recorded use after this observation: the clock was set back."""
    now = context.snapshot.observed_at
    return {
        image_id: Reason(ReasonCode.USED_THIS_PASS, {"last_used_at": usage.last_used})
        for image_id, usage in context.snapshot.image_usage.items()
        if usage.last_used is not None and usage.last_used > now
    }


def _use_unknown(context: KeepContext) -> Mapping[str, Reason]:
    """Return a reason by id of all images if image use, the pods of this node or the holds are unknown, else empty."""
    reason = use_unknown(context)
    return {} if reason is None else {image.id: reason for image in context.snapshot.images}


def use_unknown(context: KeepContext) -> Reason | None:
    """Return the reason to keep every image because image use is unknown; ``None`` if image use is known.

    The reason is one of: holds cannot be read; the pods of this node have never been listed; a sandbox cannot be read
    and the sandbox image is unknown, so that any image could be the sandbox image.
    """
    snapshot = context.snapshot
    if snapshot.holds_error:
        return Reason(ReasonCode.USE_UNKNOWN, {"detail": snapshot.holds_error})
    if snapshot.pod_images.error:
        return Reason(ReasonCode.USE_UNKNOWN, {"detail": snapshot.pod_images.error})
    if not snapshot.sandboxes_unread or snapshot.sandbox_images or context.pause_images:
        return None
    if any(sandbox.image for sandbox in snapshot.sandboxes) or any(image.pinned for image in snapshot.images):
        return None
    count = len(snapshot.sandboxes_unread)
    detail = f"cannot read {count} sandbox(es), and the sandbox image is unknown"
    return Reason(ReasonCode.USE_UNKNOWN, {"detail": detail})


KEEP_RULES: Final[tuple[KeepRule, ...]] = (
    KeepRule((ReasonCode.NOT_IN_PLAN,), _not_in_plan),
    KeepRule((ReasonCode.IN_USE_BY_CONTAINER, ReasonCode.IN_USE_BY_SANDBOX), _in_use),
    KeepRule((ReasonCode.PINNED,), _pinned),
    KeepRule((ReasonCode.SANDBOX_IMAGE,), _sandbox_images),
    KeepRule((ReasonCode.NAMED_BY_POD,), _named_by_pods),
    KeepRule((ReasonCode.PROTECTED, ReasonCode.NEWEST_TAGS), _protected),
    KeepRule((ReasonCode.IRREPLACEABLE, ReasonCode.ORIGIN_UNKNOWN), _irreplaceable),
    KeepRule((ReasonCode.HELD,), _held),
    KeepRule((ReasonCode.LABELS_UNKNOWN,), _labels_unknown),
    KeepRule((ReasonCode.FAILED_EARLIER,), _failed),
    KeepRule((ReasonCode.USED_THIS_PASS,), _used_since),
    KeepRule((ReasonCode.USE_UNKNOWN,), _use_unknown),
)
"""The keep rules in order of precedence."""


def keep_context(
    snapshot: NodeSnapshot,
    protection: ProtectionPolicy,
    users: ImageUsers,
    *,
    failed: Mapping[str, str],
    only: frozenset[str] | None,
) -> KeepContext:
    """Return the inputs of the keep rules; see :class:`KeepContext`."""
    return KeepContext(snapshot, users, protection, failed, only, _pause_images(tuple(snapshot.images)))


@keep_last_result
def _pause_images(images: tuple[Image, ...]) -> frozenset[str]:
    """Return the ids of the images named like a pause image."""
    return frozenset(
        image.id
        for image in images
        for reference in image.references
        if "pause" in reference and is_named_like_pause(reference)  # fast pre-check
    )


def first_keep_reasons(context: KeepContext) -> dict[str, Reason]:
    """Return the reason of the first matching keep rule for every kept image, by image id."""
    reasons: dict[str, Reason] = {}
    for rule in reversed(KEEP_RULES):
        reasons.update(rule.find(context))
    return reasons


def kept_names(snapshot: NodeSnapshot, protection: ProtectionPolicy, held: Iterable[HeldContent]) -> dict[str, Reason]:
    """Return the reasons to keep the names of images that CRI does not list, by name of the holder.

    All keep rules apply, with the names as references. The labels of such an image are unknown, as is its origin, which
    is relevant only with ``irreplaceable = "never"``: without manifest or config, no container can use the image.
    """
    if protection.irreplaceable is Irreplaceable.LAST:
        protection = replace(protection, irreplaceable=Irreplaceable.IGNORE)
    images: dict[str, Image] = {}
    for each in held:
        if each.names:
            own = [name for name in each.names if not name.startswith("sha256:")]
            image_id = next((name for name in each.names if name.startswith("sha256:")), each.target)
            digests = tuple(name for name in own if "@" in name)
            images[each.name] = Image(image_id, tuple(name for name in own if "@" not in name), digests)
    unread = dict.fromkeys([image.id for image in images.values()], "the image is incomplete")
    unlisted = replace(
        snapshot,
        images=tuple(images.values()),
        label_reading=replace(snapshot.label_reading, unread=unread),
        storage=None,
    )
    found = first_keep_reasons(keep_context(unlisted, protection, find_users(unlisted), failed=NO_FAILURES, only=None))
    return {name: found[image.id] for name, image in images.items() if image.id in found}


def keep_reasons(
    snapshot: NodeSnapshot, protection: ProtectionPolicy, image_ids: Collection[str]
) -> dict[str, tuple[Reason, ...]]:
    """Return the reasons of all matching keep rules for each of these images, in order of precedence.

    A plan contains only the first reason.
    """
    context = keep_context(snapshot, protection, find_users(snapshot), failed=NO_FAILURES, only=None)
    found = [rule.find(context) for rule in KEEP_RULES]
    return {image_id: tuple(reasons[image_id] for reasons in found if image_id in reasons) for image_id in image_ids}
