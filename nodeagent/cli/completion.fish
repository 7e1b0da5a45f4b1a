# fish completion of nodeagent
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
