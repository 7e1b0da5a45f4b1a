# bash completion of nodeagent
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
