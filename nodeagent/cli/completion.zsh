#compdef nodeagent
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
