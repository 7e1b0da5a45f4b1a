"""Signature of SHA256SUMS with a key file or a GnuPG key."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "systemd/sign"
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="requires openssl")


def sign(directory: Path, key: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, directory, key], check=False, capture_output=True, text=True)


@pytest.fixture
def artefacts(tmp_path: Path) -> Path:
    directory = tmp_path / "dist"
    directory.mkdir()
    (directory / "a.deb").write_bytes(b"package")
    (directory / "SHA256SUMS").write_text(f"{hashlib.sha256(b'package').hexdigest()}  a.deb\n")
    return directory


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.pem"
    command: list[str | Path] = [
        "openssl",
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-out",
        path,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return path


def test_signature_by_a_key_file_is_verified_by_its_public_key(artefacts: Path, key: Path) -> None:
    assert sign(artefacts, str(key)).returncode == 0
    public = key.with_suffix(".pub")
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    command: list[str | Path] = [
        "openssl",
        "dgst",
        "-sha256",
        "-verify",
        public,
        "-signature",
        artefacts / "SHA256SUMS.sig",
    ]
    subprocess.run([*command, artefacts / "SHA256SUMS"], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("gpg") is None, reason="requires gpg")
def test_signature_by_a_gnupg_key_is_verified(artefacts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    create = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", "release@example.com", "ed25519", "sign"]
    subprocess.run(create, check=True, capture_output=True)
    try:
        assert sign(artefacts, "release@example.com").returncode == 0
        subprocess.run(
            ["gpg", "--verify", artefacts / "SHA256SUMS.asc", artefacts / "SHA256SUMS"], check=True, capture_output=True
        )
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], check=False)


def test_changed_file_is_not_signed(artefacts: Path, key: Path) -> None:
    (artefacts / "a.deb").write_bytes(b"other")
    assert sign(artefacts, str(key)).returncode != 0
    assert not (artefacts / "SHA256SUMS.sig").exists()


def test_missing_key_is_a_usage_error(artefacts: Path) -> None:
    assert sign(artefacts, "").returncode == 2
