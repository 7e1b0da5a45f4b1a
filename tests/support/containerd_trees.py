"""Trees of containerd's configuration files, valid and odd ones; ``@`` stands for the directory of the main file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

MAIN: Final = "config.toml"
OLD, SHORT, IMAGES = '[plugins."io.containerd.grpc.v1.cri"', "[plugins.cri", '[plugins."io.containerd.cri.v1.images"'
_OLD_ALL = f"""\
{OLD}]
sandbox_image = "a/b:1"
max_concurrent_downloads = 7
{OLD}.containerd]
snapshotter = "native"
discard_unpacked_layers = true
"""
_SHORT_ALL = _OLD_ALL.replace(OLD, SHORT)
_NEW_ALL = f"""\
{IMAGES}]
snapshotter = "native"
discard_unpacked_layers = true
{IMAGES}.pinned_images]
sandbox = "a/b:1"
"""
_RUNTIMES = f"""\
{OLD}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""
V2, V3 = "version = 2\n", "version = 3\n"


def imports(*paths: str) -> str:
    """Return an assignment of ``imports``."""
    return f"imports = {[*paths]}\n"


TREES: Final[dict[str, dict[str, str]]] = {
    "empty": {MAIN: ""},
    "version-1": {MAIN: _SHORT_ALL},
    "version-1-long-name": {MAIN: _OLD_ALL},
    "version-1-new-table": {MAIN: _NEW_ALL},
    "version-0": {MAIN: "version = 0\n" + _SHORT_ALL},
    "version-2": {MAIN: V2 + _OLD_ALL},
    "version-2-runtimes": {MAIN: V2 + _OLD_ALL + _RUNTIMES},
    "version-2-empty-runtimes": {MAIN: V2 + _OLD_ALL + f"{OLD}.containerd.runtimes]\n"},
    "version-2-short-name": {MAIN: V2 + _SHORT_ALL},
    "version-2-new-table": {MAIN: V2 + _NEW_ALL},
    "version-2-both-tables": {
        MAIN: V2 + _OLD_ALL + _RUNTIMES + _NEW_ALL.replace("native", "overlayfs").replace(":1", ":2")
    },
    "version-3": {MAIN: V3 + _NEW_ALL},
    "version-3-old-table": {MAIN: V3 + _OLD_ALL},
    "version-3-old-key": {
        MAIN: V3 + f'{IMAGES}]\nsandbox_image = "a/b:1"\n{IMAGES}.containerd]\nsnapshotter = "native"\n'
    },
    "version-4": {MAIN: "version = 4\n"},
    "version-is-text": {MAIN: 'version = "2"\n'},
    "version-at-the-end": {MAIN: _SHORT_ALL + V2},
    "import-replaces-table": {
        MAIN: imports("b.toml") + V2 + _OLD_ALL + _RUNTIMES,
        "b.toml": V2 + f"{OLD}]\nmax_concurrent_downloads = 9\n",
    },
    "import-of-an-empty-table": {MAIN: imports("b.toml") + V2 + _OLD_ALL + _RUNTIMES, "b.toml": V2 + f"{OLD}]\n"},
    "import-of-one-value": {
        MAIN: imports("b.toml") + V2 + _OLD_ALL + _RUNTIMES,
        "b.toml": V2 + f"{OLD}.containerd]\ndiscard_unpacked_layers = false\n",
    },
    "import-of-an-empty-value": {
        MAIN: imports("b.toml") + V2 + _OLD_ALL + _RUNTIMES,
        "b.toml": V2 + f'{OLD}]\nsandbox_image = ""\n',
    },
    "import-of-one-new-value": {
        MAIN: imports("b.toml") + V3 + _NEW_ALL,
        "b.toml": V3 + f'{IMAGES}.pinned_images]\nsandbox = "a/b:3"\n',
    },
    "import-without-version": {
        MAIN: imports("b.toml") + V2 + _OLD_ALL + _RUNTIMES,
        "b.toml": f'{OLD}]\nsandbox_image = "c"\n',
    },
    "import-without-version-short-name": {MAIN: imports("b.toml") + V2 + _OLD_ALL + _RUNTIMES, "b.toml": _SHORT_ALL},
    "import-of-version-1": {
        MAIN: imports("b.toml") + V2 + _OLD_ALL,
        "b.toml": f"version = 1\n{SHORT}]\nmax_concurrent_downloads = 9\n",
    },
    "import-of-version-2-into-1": {MAIN: imports("b.toml") + _SHORT_ALL, "b.toml": V2},
    "import-of-version-2-into-1-long-name": {MAIN: imports("b.toml") + _OLD_ALL + _RUNTIMES, "b.toml": V2},
    "import-of-version-3-into-2": {MAIN: imports("b.toml") + V2 + _OLD_ALL + _RUNTIMES, "b.toml": V3 + f"{IMAGES}]\n"},
    "import-of-version-2-into-3": {
        MAIN: imports("b.toml") + V3 + _NEW_ALL,
        "b.toml": V2 + f'{OLD}]\nsandbox_image = "c"\n',
    },
    "import-of-runtimes": {MAIN: imports("b.toml") + V2 + _OLD_ALL, "b.toml": V2 + _RUNTIMES},
    "last-version-decides": {
        MAIN: imports("b.toml", "c.toml") + V2 + _OLD_ALL + _RUNTIMES,
        "b.toml": V3,
        "c.toml": V2,
    },
    "pattern": {
        MAIN: imports("@/conf.d/*.toml") + V2 + _OLD_ALL + _RUNTIMES,
        "conf.d/b.toml": f'{OLD}]\nsandbox_image = "b"\n',
        "conf.d/a.toml": f'{OLD}]\nsandbox_image = "a"\n',
        "conf.d/B.toml": f'{OLD}]\nsandbox_image = "B"\n',
    },
    "hidden-file-matches": {
        MAIN: imports("@/conf.d/*") + V2 + _OLD_ALL,
        "conf.d/.x": f'{OLD}]\nsandbox_image = "a"\n',
    },
    "two-asterisks": {
        MAIN: imports("@/d/**/*.toml") + V2 + _OLD_ALL,
        "d/e/a.toml": f'{OLD}]\nsandbox_image = "a"\n',
        "d/e/f/b.toml": f'{OLD}]\nsandbox_image = "b"\n',
    },
    "relative-pattern": {
        MAIN: imports("conf.d/*.toml") + V2 + _OLD_ALL,
        "conf.d/a.toml": f'{OLD}]\nsandbox_image = "a"\n',
    },
    "pattern-without-match": {
        MAIN: imports("@/conf.d/*.toml") + V2 + _OLD_ALL,
        "conf.d/a.conf": f'{OLD}]\nsandbox_image = "a"\n',
    },
    "list-order-and-nested-import": {
        MAIN: imports("b.toml", "a.toml") + V2,
        "b.toml": imports("d/c.toml") + f'{OLD}]\nsandbox_image = "b"\n',
        "a.toml": f'{OLD}]\nsandbox_image = "a"\n',
        "d/c.toml": imports("e.toml") + f'{OLD}]\nsandbox_image = "c"\n',
        "d/e.toml": f"{OLD}]\nmax_concurrent_downloads = 3\n",
    },
    "import-of-the-main-file": {
        MAIN: imports("b.toml") + V2 + _OLD_ALL,
        "b.toml": imports(MAIN, "./d/../b.toml") + V2 + f'{OLD}]\nsandbox_image = "b"\n',
    },
    "import-of-a-directory": {MAIN: imports("d") + V2, "d/a.toml": ""},
    "empty-import": {MAIN: imports("") + V2},
    "imports-is-text": {MAIN: 'imports = "b.toml"\n' + V2, "b.toml": ""},
    "invalid": {MAIN: V2 + "[a]\nx = 1\nx = 2\n"},
    "wrong-type": {MAIN: V2 + f"{OLD}]\nsandbox_image = 7\n" + _RUNTIMES},
    "imports-in-a-table": {
        MAIN: V2 + _OLD_ALL + imports("b.toml") + "disabled_plugins = ['io.containerd.grpc.v1.cri']\n",
        "b.toml": V2 + f'{OLD}]\nsandbox_image = "b"\n',
    },
    "misspelt": {
        MAIN: "import = ['b.toml']\n"
        + V2
        + f'{OLD}]\nsandbox_images = "b"\nsnapshotter = "native"\n{OLD}.containerd]\ndiscard_unpacked_layer = true\n',
        "b.toml": V2,
    },
    "other-case": {MAIN: V2 + f'{OLD}]\nSandbox_Image = "b"\n'},
    "disabled": {MAIN: 'disabled_plugins = ["cri"]\n'},
    "disabled-short-name": {MAIN: V2 + 'disabled_plugins = ["cri"]\n'},
    "disabled-short-name-in-import": {MAIN: imports("b.toml") + V2, "b.toml": 'disabled_plugins = ["cri"]\n'},
    "inline-tables": {
        MAIN: V2
        + 'plugins."io.containerd.grpc.v1.cri".sandbox_image = "a/b:1"\n'
        + 'plugins."io.containerd.grpc.v1.cri".containerd = { snapshotter = "native", runtimes = { runc = {} } }\n'
    },
    "long-values": {MAIN: V2 + f'required_plugins = [\n  # a\n]\n{OLD}]\nsandbox_image = """\n[b]"""\n'},
    "carriage-returns": {MAIN: (V2 + _OLD_ALL).replace("\n", "\r\n")},
    "handlers": {
        MAIN: V2
        + _RUNTIMES
        + 'snapshotter = "native"\n'
        + f'{OLD}.containerd.default_runtime]\nsnapshotter = "native"\n'
    },
}


def write_tree(root: Path, files: dict[str, str], directory: str = "") -> Path:
    """Write the files of a tree below ``root``, and return the main file; ``@`` is replaced by ``directory``."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("@", directory or str(root)).encode())
    return root / MAIN
