"""A node-side agent for container nodes: garbage collection, pod eviction and graceful shutdown.

Each feature observes the node into an immutable snapshot (``observe``), plans with pure functions that state a reason
for every candidate (``plan``), and executes the plan after a re-check of each item (``act``). The daemon, previews and
explanations use the same planners, so a preview equals the run.

Each package imports only packages below it (import contracts in ``pyproject.toml``)::

    cli         commands: render documents, make no decisions
    daemon      loops, control API, metrics and health, reload, shutdown
    api         documents: the published JSON
    act         executors, and the composition of an agent
    observe     one reader for each observation
    telemetry   log events, event bus, counters
    runtime, host, kube, store    clients of CRI and containerd, kernel and systemd, kubelet; state on disk
    config      settings
    plan        decisions
    model       value types

Three typical changes, with the files to edit:

An eviction signal
    ``model/pressure.py`` (member of ``Signal``), ``plan/eviction/thresholds.py`` (unit, resource and node condition),
    ``host/signals.py`` (its reading), ``config/eviction.py`` (its name in the configuration reference),
    ``tests/unit/host/test_signals.py``. Thresholds, status and metrics need no change.
A keep rule for images
    ``plan/reason_codes.py`` (reason code and sentence), ``plan/gc/keep_rules.py`` (the rule, at its precedence),
    ``plan/gc/explanation.py`` (condition of a later removal), ``tests/unit/plan/gc/test_image_keep_rules.py``.
    For a separate setting: a field of ``ProtectionPolicy`` and the option in ``config``.
A column in a list
    ``api/lists.py`` (field of the document), ``cli/list_views.py`` (column of the table),
    ``tests/unit/cli/test_listing.py``, and the stored screens of ``tests/unit/cli/test_golden.py`` for a column that is
    shown by default or with ``-o wide``.
"""

__version__ = "0.2.0"
