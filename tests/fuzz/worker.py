"""Fuzz one target for a duration: ``python -m tests.fuzz.worker TARGET SECONDS SEED RESULT``.

If atheris is installed, inputs are guided by coverage; otherwise they are mutations of the seeds, and the duration is
CPU time. The figures are written to a JSON file once a second, since the engine ends the process without a callback. A
defect ends the process with an error; the input that caused the defect is stored beside the figures.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

try:
    import atheris
except ImportError:
    atheris = None

from tests.fuzz.figures import GROWTH_MIB, STALL_S, Figures, rss_mib

with atheris.instrument_imports(include=["nodeagent"]) if atheris else nullcontext():
    from tests.fuzz.mutation import MOST_BYTES, mutations
    from tests.fuzz.targets import open_targets

if TYPE_CHECKING:
    from collections.abc import Callable

_WARM_UP: Final = 2000
_RESULT_INTERVAL_S: Final = 1.0
_ENGINE_TIMEOUT_S: Final = 30
_INITIAL_MUTATIONS: Final = 500


class Watch:
    """Runner of a target that processes one input per call and checks CPU time and memory."""

    def __init__(self, figures: Figures, run: Callable[[bytes], bool], result: Path) -> None:
        """Create a runner that writes its figures to ``result``."""
        self._figures = figures
        self._run = run
        self._result = result
        self._written_s = 0.0
        self._first_mib = 0.0

    def __call__(self, data: bytes) -> None:
        """Process one input; a defect is recorded and raised.

        An input that stalls is repeated once, since CPU time includes delays by other guests of the machine.
        """
        figures = self._figures
        accepted, took_s = self._timed(data)
        if took_s > STALL_S:
            took_s = min(took_s, self._timed(data)[1])
        figures.accepted += accepted
        figures.inputs += 1
        if took_s > figures.slowest_s:
            figures.slowest_s, figures.slowest_input = took_s, data[:200].decode("latin-1")
        if took_s > STALL_S:
            self._fail(data, f"{took_s:.2f} s of CPU time")
            raise TimeoutError(figures.defect)
        if time.monotonic() - self._written_s > _RESULT_INTERVAL_S:
            self._check_memory(data)
            self.write()

    def _timed(self, data: bytes) -> tuple[bool, float]:
        """Return whether an input is accepted, and the CPU time in seconds; a defect is recorded and raised."""
        start_s = time.thread_time()
        try:
            accepted = self._run(data)
        except BaseException as error:
            self._fail(data, repr(error))
            raise
        return accepted, time.thread_time() - start_s

    def write(self) -> None:
        """Write the figures to the result file."""
        self._written_s = time.monotonic()
        self._result.write_text(json.dumps(asdict(self._figures)))

    def _check_memory(self, data: bytes) -> None:
        figures = self._figures
        figures.rss_mib = round(rss_mib("self"), 1)
        if figures.inputs < _WARM_UP:
            self._first_mib = figures.rss_mib
        figures.rss_growth_mib = round(figures.rss_mib - (self._first_mib or figures.rss_mib), 1)
        if (
            figures.engine == "mutation" and figures.rss_growth_mib > GROWTH_MIB
        ):  # the memory of other engines grows with the inputs that they store
            self._fail(data, f"memory grew by {figures.rss_growth_mib} MiB")
            raise MemoryError(figures.defect)

    def _fail(self, data: bytes, defect: str) -> None:
        self._figures.defect = defect
        self._result.with_suffix(".input").write_bytes(data)
        self.write()


def fuzz(name: str, seconds: float, seed: int, result: Path) -> None:
    """Fuzz a target for ``seconds``; raise the first defect."""
    warnings.simplefilter("error")
    with open_targets() as targets:
        target = targets[name]
        watch = Watch(Figures(name, "atheris" if atheris else "mutation"), target.run, result)
        if atheris:
            _guide(atheris, watch, _corpus(target.seeds, seed, result), seconds, seed)
        else:
            ends_s = time.process_time() + seconds
            for data in mutations(target.seeds, Random(seed)):
                watch(data)
                if time.process_time() > ends_s:
                    break
        watch.write()


def _corpus(seeds: tuple[bytes, ...], seed: int, result: Path) -> Path:
    """Write the initial inputs for the engine to a directory and return its path.

    Initial inputs are the seeds and mutations of their JSON, since the engine mutates only bytes.
    """
    corpus = result.with_suffix(".corpus")
    corpus.mkdir()
    for number, data in enumerate(islice(mutations(seeds, Random(seed)), len(seeds) + _INITIAL_MUTATIONS)):
        (corpus / f"{number:04}").write_bytes(data)
    return corpus


def _guide(engine: Any, watch: Watch, corpus: Path, seconds: float, seed: int) -> None:
    """Run atheris, which selects the inputs and ends the process."""
    options = (
        *(f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-max_len={MOST_BYTES}", f"-timeout={_ENGINE_TIMEOUT_S}"),
        *("-rss_limit_mb=1024", f"-artifact_prefix={corpus.with_suffix('')}-", "-verbosity=0"),
    )
    engine.Setup([sys.argv[0], str(corpus), *options], watch)
    engine.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
