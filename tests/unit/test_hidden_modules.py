"""Imports without unused modules, each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENT = "import nodeagent.api.codec, nodeagent.runtime.connection, nodeagent.runtime.containerd_records"


def run(code: str) -> str:
    """Return the output of Python code in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-I", "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["typing_extensions", "google.protobuf.text_format", "pickle"])
def test_runtime_clients_do_not_import_unused_modules_of_libraries(module: str) -> None:
    assert run(f"import sys\n{CLIENT}\nprint({module!r} in sys.modules)") == "False"


@pytest.mark.parametrize(
    ("module", "name"),
    [("typing_extensions", "TypedDict"), ("google.protobuf.internal.python_message", "GeneratedProtocolMessageType")],
)
def test_replaced_module_is_importable_afterwards(module: str, name: str) -> None:
    assert run(f"{CLIENT}\nfrom {module} import {name}\nprint({name}.__name__)") == name


def test_messages_are_encoded_decoded_and_shown_without_the_python_implementation() -> None:
    code = (
        f"{CLIENT}\nfrom nodeagent._proto.containerd.services.images.v1.images_pb2 import Image\n"
        "image = Image(name='a', labels={'b': 'c'})\nimage.created_at.FromSeconds(1)\n"
        "print(Image.FromString(image.SerializeToString()) == image, 'name: ' in str(image))"
    )
    assert run(code) == "True True"
