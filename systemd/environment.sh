# The virtual environment of an installed package: functions for its scripts, which the builds insert there. The variable
# python is the interpreter, home the directory.

# The new environment is created beside the old one, which the running agent uses until its restart.
make_environment() {
    fresh=$(mktemp -d "$home/venv-XXXXXX")
    chmod 0755 "$fresh"
    trap 'rm -rf "$fresh"' EXIT
    "$python" -I -m venv "$fresh"
    "$fresh/bin/python" -I -m pip --isolated --quiet --disable-pip-version-check install --no-index \
        --find-links /usr/share/nodeagent/wheels --root-user-action=ignore --no-cache-dir nodeagent
    "$fresh/bin/python" -I -m pip --isolated --quiet uninstall --yes --root-user-action=ignore pip
    # The launcher that pip generates would import modules from PYTHONPATH.
    cat >"$fresh/bin/nodeagent" <<LAUNCHER
#!$fresh/bin/python -I
import sys

from nodeagent.cli.start import main

sys.exit(main())
LAUNCHER
    if command -v restorecon >/dev/null; then
        restorecon -R "$fresh" || true
    fi
    ln -s "${fresh##*/}" "$home/venv.fresh"
    mv -T "$home/venv.fresh" "$home/venv"
    trap - EXIT
}

remove_old_environments() {
    for each in "$home"/venv-??????; do
        if [ -f "$each/pyvenv.cfg" ] && [ ! -L "$each" ] && [ "${each##*/}" != "$(readlink "$home/venv")" ]; then
            rm -rf "$each"
        fi
    done
}
