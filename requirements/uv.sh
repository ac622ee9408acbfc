#!/usr/bin/env bash
# uv, told what pip was told: uv reads neither pip's variables nor its files.
# Usage: requirements/uv.sh cpu|gpu UV_ARGUMENT...
set -euo pipefail
bin=$(dirname "$0")/../.venv/bin
extra=$1
shift

settings=$("$bin/python" -m pip config list)
pip_setting() {
    local section value=
    for section in :env: install global; do
        value=$(sed -n "s/^$section\.$1='\(.*\)'$/\1/p" <<<"$settings")
        if [[ $value ]]; then break; fi
    done
    xargs <<<"${value//\\n/ }"
}

has_torch() {
    for link in "$@"; do
        if compgen -G "${link#file://}/torch-*+cpu*.whl" >/dev/null; then return; fi
    done
    return 1
}

links=$(pip_setting find-links)
index=$(pip_setting index-url)
more=$(pip_setting extra-index-url)
if [[ $links ]]; then export UV_FIND_LINKS=${UV_FIND_LINKS:-${links// /,}}; fi
if [[ $index ]]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
if [[ $more ]]; then
    # pip looks at all its indexes; uv, unless told, stops at the first that has the package.
    export UV_INDEX=${UV_INDEX:-$more} UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match}
fi
# torch's CPU build is not on the package index. It comes from a find-links directory that has it, else from PyTorch's
# own index, which uv knows by the name `cpu`. Set UV_TORCH_BACKEND= (empty) where an index of your own has the build.
if [[ $extra == cpu && ! -v UV_TORCH_BACKEND ]] && ! has_torch $links; then export UV_TORCH_BACKEND=cpu; fi
if [[ -z ${UV_TORCH_BACKEND-} ]]; then unset UV_TORCH_BACKEND; fi

exec "$bin/uv" "$@"
