# Sourced by quickstart.sh and test.sh, from the repository root: makes .venv with everything in
# it, or finds that it is already there. Defines make_environment.
#
# PYTHON=/path/to/python chooses the interpreter; otherwise the first that fits is taken.

readonly VENV=.venv
readonly EXTRAS=quickstart,tensorboard,dev

say() { printf '\n▶ %s\n' "$*"; }

run() {
    printf '  + %s\n' "$*"
    "$@"
}

# Whether a command is a Python that we support. A version manager's shim may exist and not run.
python_fits() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.10 python3.13 python3 python}; do
        if python_fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        echo "error: PYTHON=$PYTHON is not a Python 3.10 or newer that runs" >&2
    else
        echo "error: no Python 3.10 or newer found; install one, or name it: PYTHON=/path/to/python $0" >&2
    fi
    return 1
}

version_of() { "$1" -c 'import platform; print(platform.python_version())'; }

# What the environment was made from: anything different means installing again.
fingerprint() {
    version_of "$VENV/bin/python"
    pwd -P
    cat pyproject.toml constraints.txt scripts/environment.sh
}

# Not a left-over: of another machine, of a removed or unwanted Python, of another folder (its
# commands name the folder they were made in).
venv_fits() {
    python_fits "$VENV/bin/python" || return 1
    (set +u && source "$VENV/bin/activate" && [ "$VIRTUAL_ENV" -ef "$VENV" ]) || return 1
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$VENV/bin/python")" = "$(version_of "$PYTHON")" ]
}

create_venv() {
    local python
    python=$(find_python)
    rm -rf "$VENV"
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        run "$python" -m venv "$VENV"
    else # Debian splits ensurepip off; the pip that is there can fill the environment
        run "$python" -m venv --without-pip "$VENV"
        run "$python" -m pip --python "$VENV/bin/python" install --quiet pip
    fi
}

make_environment() {
    local stamp=$VENV/.installed torch
    if venv_fits; then
        if [ "$(fingerprint)" = "$(cat "$stamp" 2>/dev/null)" ]; then
            say "environment: $VENV is up to date (Python $(version_of "$VENV/bin/python"))"
            return
        fi
        say "environment: bringing $VENV up to date (Python $(version_of "$VENV/bin/python"))"
    else
        [ -e "$VENV" ] && say "environment: $VENV is of no use here and is made anew" ||
            say "environment: making $VENV"
        create_venv
    fi
    rm -f "$stamp"
    # torch first and alone, at the pinned version: pip then takes a local or cached wheel where
    # there is one, and nothing later asks for another.
    torch=$(grep '^torch==' constraints.txt)
    run "$VENV/bin/python" -m pip install --disable-pip-version-check "$torch"
    run "$VENV/bin/python" -m pip install --disable-pip-version-check --quiet \
        -c constraints.txt -e ".[$EXTRAS]"
    fingerprint >"$stamp"
}
