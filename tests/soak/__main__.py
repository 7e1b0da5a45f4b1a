"""Run a daemon on a private containerd for a long time: ``python -m tests.soak --minutes 60 [churn] [away]``.

The scenarios run concurrently, each with a separate daemon and runtime. The exit code is 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.soak.scenarios import Away, Churn
from tests.soak.usage import Usage, growth, read_usage, windows
from tests.support.containerd import Containerd
from tests.support.reclaim import poll

if TYPE_CHECKING:
    from tests.soak.scenarios import Scenario

ROOT: Final = Path(__file__).parents[2]
SCENARIOS: Final[dict[str, type[Churn | Away]]] = {"churn": Churn, "away": Away}
STATE_LIMIT_MIB: Final = 8.0
"""Maximum size of the state directory: a history of 1 MiB, its write-ahead log of at most 4 MiB, and other files."""
SAMPLES_S: Final = 5.0


def main() -> int:
    """Run the scenarios; return 1 if a scenario exceeds a limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two rounds of work")
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], help="both unless given")
    options = parser.parse_args()
    if len(options.scenarios) == 1:
        return soak(options.scenarios[0], options.minutes * 60, options.every)
    words = ["--minutes", str(options.minutes), "--every", str(options.every)]
    command = [sys.executable, "-m", "tests.soak", *words]
    running = [subprocess.Popen([*command, name], cwd=ROOT) for name in options.scenarios or SCENARIOS]
    return max(abs(each.wait()) for each in running)


def soak(name: str, seconds: float, every_s: float) -> int:
    """Run one scenario, print its figures, and return 1 if a limit is exceeded."""
    with tempfile.TemporaryDirectory() as made, Containerd() as containerd:
        directory = Path(made)
        config = write_config(directory, containerd)
        scenario = SCENARIOS[name](containerd, directory)
        command = [sys.executable, "-m", "nodeagent", "run", "--config", str(config)]
        with (directory / "log").open("w") as log, subprocess.Popen(command, stderr=log, cwd=ROOT) as daemon:
            try:
                poll("the daemon listens", lambda: is_listening(directory / "metrics.sock"), timeout_s=60)
                samples = sample(name, scenario, daemon.pid, directory, seconds, every_s)
            finally:
                daemon.terminate()
        passes = (directory / "log").read_text().count('"pass_finished"')
    before, after = windows(samples)
    print(f"{name}: {passes} finished passes, {len(samples)} samples\n  before {before}\n  after  {after}", flush=True)
    exceeded = growth(samples, state_limit_mib=STATE_LIMIT_MIB)
    print("\n".join(f"{name}: FAILED: {line}" for line in exceeded) or f"{name}: ok", flush=True)
    return 1 if exceeded else 0


def is_listening(path: Path) -> bool:
    """Return whether a process is listening on a socket; the file alone does not prove that."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def sample(  # noqa: PLR0917 - only one caller
    name: str, scenario: Scenario, pid: int, directory: Path, seconds: float, every_s: float
) -> list[Usage]:
    """Repeat the scenario's work for ``seconds``; return samples of the daemon's resource usage."""
    samples: list[Usage] = []
    began_s = time.monotonic()
    next_s, number = began_s, 0
    while (now_s := time.monotonic()) < began_s + seconds:
        if now_s >= next_s:
            scenario.step(number, pid)
            number, next_s = number + 1, now_s + every_s
        samples.append(read_usage(pid, directory / "state"))
        if len(samples) % 60 == 1:
            print(f"{name}: {(now_s - began_s) / 60:4.0f} min {samples[-1]}", flush=True)
        time.sleep(SAMPLES_S)  # a real sleep between samples
    return samples


def write_config(directory: Path, containerd: Containerd) -> Path:
    """Write a configuration with short intervals and ages, and a small history."""
    config = directory / "nodeagent.toml"
    quoted = {name: json.dumps(str(directory / name)) for name in ("state", "control.sock", "metrics.sock", "links")}
    (directory / "links").mkdir()
    config.write_text(
        f'role = "standalone"\n[runtime]\nendpoint = "unix://{containerd.socket}"\n'
        f"[state]\ndirectory = {quoted['state']}\n[control]\nsocket = {quoted['control.sock']}\n"
        f'[history]\nmaximum_size = "1Mi"\n[metrics]\nlisten = {json.dumps(f"unix://{directory}/metrics.sock")}\n'
        '[image_gc]\ninterval = "10s"\nhigh_threshold_percent = 1\nlow_threshold_percent = 0\nminimum_age = "30s"\n'
        '[container_gc]\ninterval = "5s"\ndeleted_pod_grace = "20s"\nsandbox_minimum_age = "10s"\n'
        f'log_minimum_age = "20s"\npod_log_root = "{containerd.log_root}"\n'
        f'container_log_root = {quoted["links"]}\n[protect]\nimages = ["*/tools/*"]\n'
    )
    return config


if __name__ == "__main__":
    sys.exit(main())
