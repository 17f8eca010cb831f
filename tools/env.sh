#!/bin/sh
# Make .venv fit for work, and do nothing when it already is.
#
# Needs a Python of at least 3.11, nothing else: uses uv when it is on PATH, else venv and pip.
#   PYTHON=...  the interpreter to use instead of the first that fits
set -eu
cd "$(dirname "$0")/.."

extras='dev,all,demo'
stamps=.venv/taskharbor   # one file per fact: the folder, the interpreter and the contents it was made for

main() {
    if command -v uv >/dev/null 2>&1; then installer=uv; else installer=pip; fi
    [ -w "${HOME:-/}" ] || export UV_NO_CACHE=1   # uv insists on a cache, an account without a home has none
    if ! is_usable; then
        create
    elif [ "$(fingerprint)" = "$(stamp contents)" ]; then
        return
    fi
    install
    fingerprint >"$stamps/contents"
}

# A moved environment points at its old place, and PYTHON may have been changed since.
is_usable() {
    [ "$(pwd)" = "$(stamp place)" ] || return 1
    [ -z "${PYTHON:-}" ] || [ "$PYTHON" = "$(stamp python)" ] || return 1
    .venv/bin/python -c '' 2>/dev/null
}

stamp() {
    cat "$stamps/$1" 2>/dev/null || true
}

# Contents, not dates: a fresh checkout of the same files must not install again.
fingerprint() {
    cat pyproject.toml constraints.txt tools/env.sh | cksum
}

create() {
    python=$(find_python)
    echo "Creating .venv with $("$python" --version), $installer"
    rm -rf .venv
    if [ "$installer" = uv ]; then
        uv venv --quiet --seed --python "$python" .venv   # with pip: uv may be gone next time
    else
        "$python" -m venv .venv
    fi
    mkdir "$stamps"
    pwd >"$stamps/place"
    echo "$python" >"$stamps/python"
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3.13 python3.12 python3.11 python3; fi
    for candidate; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "No suitable Python found; tried: $*" >&2
    echo "TaskHarbor needs Python 3.11 or later with venv (on Debian and Ubuntu: apt install python3-venv)." >&2
    echo "To name one yourself: make PYTHON=/path/to/python ..." >&2
    return 1
}

# A name on PATH proves nothing (pyenv puts names there that only print an error): run it.
# Debian's bare python3 has no ensurepip; uv does without.
fits() {
    if [ "$installer" = uv ]; then modules=sys; else modules='sys, ensurepip, venv'; fi
    "$1" -c "import $modules; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1
}

install() {
    echo "Installing taskharbor[$extras] with $installer; the first time takes a moment"
    if [ "$installer" = uv ]; then
        uv pip install --quiet --python .venv/bin/python -e ".[$extras]" -c constraints.txt
    else
        .venv/bin/python -m pip install -qq --disable-pip-version-check -e ".[$extras]" -c constraints.txt
    fi
}

main
