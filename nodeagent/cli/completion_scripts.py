"""Completion scripts of bash, zsh and fish. The scripts pass each word as an argument, so that no shell expands it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BASH: Final = r"""# bash completion of nodeagent
_nodeagent() {
    local line=${COMP_LINE:0:COMP_POINT} words=() replies=() current prefix reply
    read -r -a words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    current=${words[${#words[@]}-1]}
    mapfile -t replies < <("$1" __complete "${words[@]:1}" 2>/dev/null)
    COMPREPLY=()
    if [[ ${replies[0]} == :files ]]; then
        compopt -o default
        return
    fi
    prefix=${current%"${current##*[:=@]}"} # readline breaks words at these characters
    for reply in "${replies[@]}"; do
        reply=${reply%%$'\t'*}
        [[ -n $reply ]] && COMPREPLY+=("${reply#"$prefix"}")
    done
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}
complete -F _nodeagent nodeagent
"""
_ZSH: Final = r"""#compdef nodeagent
# zsh completion of nodeagent
_nodeagent() {
    local -a replies items
    local reply
    replies=("${(@f)$("${words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ ${replies[1]} == :files ]]; then
        _files
        return
    fi
    for reply in "${replies[@]}"; do
        [[ -n $reply ]] || continue
        if [[ $reply == *$'\t'* ]]; then
            items+=("${${reply%%$'\t'*}//:/\\:}:${reply#*$'\t'}")
        else
            items+=("${reply//:/\\:}")
        fi
    done
    (( ${#items} )) && _describe nodeagent items
}
if [[ ${funcstack[1]} == _nodeagent ]]; then
    _nodeagent "$@"
else
    compdef _nodeagent nodeagent
fi
"""
_FISH: Final = r"""# fish completion of nodeagent
function __nodeagent_complete
    set -l words (commandline -opc)
    set -l replies ($words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null)
    if test "$replies[1]" = ":files"
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $replies
    end
end
complete -c nodeagent -f -a '(__nodeagent_complete)'
"""
SCRIPTS: Final[Mapping[str, str]] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
"""Completion script by shell name."""
