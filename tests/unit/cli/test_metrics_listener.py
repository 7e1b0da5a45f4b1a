"""Warnings of commands for a metrics listener that is reachable from other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nodeagent.cli.doctor import metrics_finding
from nodeagent.doctor.plan.node import Grade
from nodeagent.model.kubernetes import TlsFiles
from nodeagent.record import replace
from nodeagent.settings.loading import checked
from nodeagent.settings.settings import Listen, MetricsSettings, Origin
from tests.support.certificates import Authority
from tests.support.command import nodeagent

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        ('listen = "0.0.0.0:20310"', True),
        ('listen = "127.0.0.1:20310"', False),
        ('listen = "0.0.0.0:20310"\ncertificate_file = "/c"\nkey_file = "/k"\nclient_ca_file = "/a"', False),
    ],
)
def test_config_check_warns_of_a_metrics_address_reachable_from_other_machines_without_tls(
    tmp_path: Path, lines: str, *, warned: bool
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[metrics]\n{lines}\n")
    ended = nodeagent("config", "check", "--config", str(config))
    assert ended.returncode == 0
    assert ("serves other machines without encryption and authentication" in ended.stderr) is warned


def test_doctor_reads_the_files_of_the_listener(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    authority = Authority(tmp_path / "ca")
    authority.issue("server", days=30)
    authority.issue("old", days=-1)
    directory = authority.directory

    def finding(name: str, key: str = "server") -> tuple[Grade, str]:
        files = TlsFiles(f"{directory}/{name}.crt", f"{directory}/{key}.key", str(authority.ca_file))
        metrics = MetricsSettings(Listen("0.0.0.0", 20310), tls=files)
        found = metrics_finding(replace(checked(Origin()), metrics=metrics))
        return found.verdict, found.evidence

    assert finding("server") == (Grade.OK, "0.0.0.0:20310; TLS with client certificates")
    assert finding("old", "old")[0] is Grade.PROBLEM
    assert "the server certificate expired" in finding("old", "old")[1]
    assert "the key is not that of the certificate" in finding("old")[1]
    assert "cannot read" in finding("absent")[1]
