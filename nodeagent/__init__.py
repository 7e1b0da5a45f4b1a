"""A node-side agent for container nodes: garbage collection, pod eviction and graceful shutdown.

Each of these observes the node into an immutable snapshot (``observe``), plans with pure functions that state a reason
for every candidate (``plan``), and executes the plan after a re-check of each item (``act``). The daemon, a preview and
an explanation use the same planners, so a preview equals the run.

Each package imports only packages below it (import contracts in ``pyproject.toml``)::

    cli         commands: render documents, decide nothing
    daemon      loops, control API, metrics and health, reload, shutdown
    sim         a simulated runtime for tests and the demo
    api         documents: the published JSON
    act         executors, and the composition of an agent
    observe     one reader for each observation
    telemetry   log events, event bus, counters
    runtime, host, kube, store    clients of CRI and containerd, kernel and systemd, kubelet; state on disk
    config      settings
    plan        decisions
    model       value types

Three typical changes, with the files that each touches:

An eviction signal
    ``model/pressure.py`` (member of ``Signal``), ``plan/eviction/signals.py`` (unit, resource and node condition),
    ``host/signals.py`` (its reading), ``config/eviction_models.py`` (its name in the configuration reference),
    ``tests/unit/host/test_signals.py``. Thresholds, status and metrics follow from the first two.
A keep rule for images
    ``plan/decision.py`` (reason code and sentence), ``plan/gc/image_keep_rules.py`` (the rule, at its precedence),
    ``plan/gc/explanation.py`` (the condition of a later removal), ``tests/unit/plan/gc/test_image_keep_rules.py``. For
    a setting of its own: a field of ``ProtectionPolicy``, its rule in ``plan/gc/strictness.py`` and the option in
    ``config``.
A column in a list
    ``api/lists.py`` (field of the document), ``cli/lists.py`` (column of the table),
    ``tests/unit/cli/test_commands.py``.
"""

__version__ = "0.1.0"

__build_date__ = "2026-01-01"
"""Date of this version (UTC), set with ``__version__``. No clock before it is plausible; a constant, so that builds are
reproducible."""
