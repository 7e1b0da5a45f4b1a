# Purge of the agent's own files, for `nodeagent uninstall --purge` and the scripts of packages. An operator's files in the
# same directories (keys, notes, backups) are kept and reported, and so are symbolic links with their targets.

# own_files DIRECTORY: a pattern of the names of the agent's files, relative to the directory.
own_files() {
    document='api-client(-next)?\.pem|(api-client-request|api-pods|boot|evictions|holds|mode|pause|shutdown)\.json|last-settings\.toml|plan\.key'
    case $1 in
    /etc/nodeagent) printf %s 'config\.toml|config\.d/[^./][^/]*\.toml' ;;
    /var/lib/nodeagent)
        printf %s '(nodeagent|history|trend)\.db(\.corrupt-[0-9]{8}T[0-9]{6})?(-wal|-shm|-journal)?' \
            "|($document)|\.($document)-[a-z0-9_]{8}|(daemon|holds|pass|shutdown)\.lock"
        ;;
    /run/nodeagent) printf %s 'shutdown\.(json|lock)|\.shutdown\.json-[a-z0-9_]{8}' ;;
    esac
}

# purge ROOT: remove configuration, state, runtime files, drop-ins of doctor --fix-logind and the group of a root
# directory, empty for /, and print each removed or kept path.
purge() {
    for directory in /etc/nodeagent /var/lib/nodeagent /run/nodeagent; do
        if [ -L "$1$directory" ]; then
            printf 'kept        %s (a symbolic link to %s, not followed)\n' "$directory" "$(readlink "$1$directory")"
        elif [ -d "$1$directory" ]; then
            (
                cd "$1$directory"
                find . -regextype posix-extended ! -type d -regex "\./($(own_files "$directory"))" -delete
                [ "$directory" != /run/nodeagent ] || find . -type s -delete  # sockets may have any name
                find . -mindepth 1 -depth -type d -exec rmdir --ignore-fail-on-non-empty {} ';'
                find . ! -type d -printf "kept        $directory/%P (not a file of nodeagent)\n"
            )
            ! rmdir "$1$directory" 2>/dev/null || echo "removed     $directory"
        fi
    done
    for each in "$1"/etc/systemd/logind.conf.d/*nodeagent.conf; do
        if [ -L "$each" ] || [ ! -f "$each" ]; then
            continue
        fi
        # Without settings added by others.
        if head -n 1 "$each" | grep -q '^# Written by nodeagent' &&
            ! grep -Evq '^[[:space:]]*([#;].*|\[Login\][[:space:]]*|InhibitDelayMaxSec[[:space:]]*=.*)?$' "$each"; then
            rm -f "$each"
        else
            printf 'kept        %s (not written by nodeagent)\n' "${each#"$1"}"
        fi
    done
    if [ -z "$1" ] && getent group nodeagent >/dev/null; then
        groupdel nodeagent || true
    fi
}
