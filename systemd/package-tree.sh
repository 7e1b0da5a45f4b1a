# Functions of the builds of packages and of the image: their files, without any trace of the building machine. Sourced by
# debian/build, rpm/build and image/build, in the root of the checkout, with PYTHON as the interpreter with the agent and pip.

version=$("$python" -I -c 'from nodeagent import __version__; print(__version__)')
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export LC_ALL=C PYTHONHASHSEED=0
unset PYTHONPATH
umask 022
glibc_versions=(2_36 2_34 2_28 2_17)
pip=("$python" -I -m pip --quiet --disable-pip-version-check)

# machine_of ARCHITECTURE: the name of a Debian architecture in the names of wheels.
machine_of() {
    case $1 in
    amd64) echo x86_64 ;;
    arm64) echo aarch64 ;;
    *) echo "build: unsupported architecture: $1" >&2; return 1 ;;
    esac
}

# build_wheel DIRECTORY: the agent's own wheel, in own, from a copy of the sources, in source.
build_wheel() {
    local source=$1/source
    mkdir "$source"
    # A copy, as setuptools would include stale files of build/.
    cp -r nodeagent systemd pyproject.toml requirements.lock README.md CHANGELOG.md LICENSE systemd/python/MANIFEST.in "$source"
    find "$source" -depth '(' -name __pycache__ -o -name '*.egg-info' ')' -exec rm -rf {} +
    chmod -R u=rwX,go=rX "$source"
    "${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$1/own" "$source"
}

# pack ARCHIVE DIRECTORY NAME: a .tar.gz of DIRECTORY/NAME, independent of users and of the clock.
pack() {
    tar -c -C "$2" --format=ustar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode=u=rwX,go=rX "$3" | gzip -9n >"$1"
}

# download_wheels DIRECTORY MACHINE PYTHON_VERSION: the locked wheels; their pip options are then in the array target.
download_wheels() {
    local machine=$2 minor=$3 platforms=() glibc
    for glibc in "${glibc_versions[@]}"; do platforms+=(--platform "manylinux_${glibc}_$machine"); done
    target=(--only-binary=:all: --implementation cp --python-version "$minor" "${platforms[@]}" --platform "manylinux2014_$machine")
    "${pip[@]}" download --dest "$1" "${target[@]}" --require-hashes -r requirements.lock
}

# install_files ROOT PREFIX SYSTEMD_VERSION: the files that make install places, at the paths of packages; without the
# configuration, which remains in $scratch/files.
install_files() {
    local root=$1 prefix=$2 systemd=$3 files=$scratch/files
    rm -rf "$files"
    "$python" -I -m nodeagent install --root "$files" --systemd "$systemd" >/dev/null
    sed -i "s|/opt/nodeagent/|$prefix/|g" "$files/etc/systemd/system/nodeagent.service" "$files/usr/local/bin/nodeagent"
    mkdir -p "$root/usr/lib/systemd"
    cp -r "$files"/etc/*.d "$files"/usr/lib/* "$root/usr/lib"
    cp -r "$files/etc/systemd/system" "$root/usr/lib/systemd"
    cp -r "$files"/usr/local/* "$root/usr"
}

# make_tree ROOT OWN_WHEELS MACHINE PYTHON_VERSION SYSTEMD_VERSION: the files of a package.
make_tree() {
    local root=$1 own=$2 machine=$3 minor=$4 systemd=$5
    local share=$root/usr/share/nodeagent doc=$root/usr/share/doc/nodeagent
    mkdir -p "$share/wheels" "$doc" "$root/usr/lib/nodeagent"
    cp "$own"/*.whl "$share/wheels"
    download_wheels "$share/wheels" "$machine" "$minor"
    install_files "$root" /usr/lib/nodeagent/venv "$systemd"
    cp "$scratch/files/etc/nodeagent/config.toml" "$share"
    "$python" -I systemd/sbom.py "$share/wheels" "$machine" --sbom "$share/sbom.cdx.json" --licences "$doc/licenses"
    find "$root/usr/share/man" -type f -exec gzip -9n {} +
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
}

# insert_functions SCRIPT: print the script of a package with the functions of environment.sh and purge.sh.
insert_functions() {
    sed -e '/^# @ENVIRONMENT@$/{
        r systemd/environment.sh
        d
    }' -e '/^# @PURGE@$/{
        r systemd/purge.sh
        d
    }' "$1"
}

# size_kib ROOT: the size of a tree, independent of the filesystem of the build.
size_kib() {
    find "$1" -path "$1/DEBIAN" -prune -o -type f -printf '%s\n' -o -printf '1024\n' | awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }'
}

# set_times ROOT: one time for all files, also those with a time in the past of a wrong clock.
set_times() {
    find "$1" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
}

# write_sums OUTPUT: SHA256SUMS of all artefacts of the directory.
write_sums() {
    (cd "$1" && find . -maxdepth 1 -type f -name 'nodeagent[_-]*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum -- >SHA256SUMS)
}
