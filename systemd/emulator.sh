# Emulation of another architecture by qemu-user: functions for the tests of packages and image. Sourced, as root.

emulator=

# start_emulator ARCHITECTURE SCRATCH: let the kernel run programs of the architecture, until stop_emulator. The package
# qemu-user-static registers its emulators only on a machine with systemd. The flag F of its settings opens the emulator at
# the registration, so that roots require no copy of it.
start_emulator() {
    [ "$1" != "$(dpkg --print-architecture)" ] || return 0
    [ "$1" = arm64 ] || { echo "emulator: unsupported architecture: $1" >&2; return 1; }
    local settings=/usr/lib/binfmt.d/qemu-aarch64.conf
    [ -r "$settings" ] || { echo "emulator: $settings not found, requires qemu-user-static" >&2; return 1; }
    mkdir "$2/binfmt"
    mount -t binfmt_misc binfmt_misc "$2/binfmt"
    emulator=$2/binfmt/nodeagent-$$
    sed "s/^:qemu-aarch64:/:${emulator##*/}:/" "$settings" >"$2/binfmt/register"
}

# stop_emulator: undo start_emulator.
stop_emulator() {
    [ -n "$emulator" ] || return 0
    [ ! -e "$emulator" ] || echo -1 >"$emulator"
    umount "${emulator%/*}"
}
