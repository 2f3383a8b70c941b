# Shared by the scripts of this folder: where things are, and virtual environments that are made once.
# Sourced by bash; no script of its own.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore HF_HUB_DISABLE_TELEMETRY=1

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# install PACKAGE...: Debian packages, or word of what to install.
install() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing $*"
        apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
    else
        die "Something is missing. On Debian or Ubuntu, as root: apt-get install -y $*"
    fi
}

# python_base: a Python 3.11 or newer that can make virtual environments and build extensions.
python_base() {
    local candidate
    for candidate in ${RASE_PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            # Debian ships venv and the headers apart from the interpreter.
            "$candidate" -c 'import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
                install python3-venv python3-dev
            echo "$candidate"
            return
        fi
    done
    die "rase needs Python 3.11 or newer: install it (Debian 12: apt-get install -y python3 python3-venv python3-dev) or set RASE_PYTHON."
}

# fingerprint WORDS: changes with the words, the place, the dependencies and every kernel source.
fingerprint() {
    {
        echo "$* $ROOT"
        cat pyproject.toml
        find rase/_kernels -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.[hc]' -o -name CMakeLists.txt \) -print0 |
            sort -z | xargs -0 cat
    } | sha256sum | cut -d' ' -f1
}

# environment FOLDER EXTRAS: a virtual environment with rase installed for work in this checkout.
environment() {
    local folder=$1 extras=$2 stamp python
    stamp=$(fingerprint "$extras")
    if [ "$(cat "$folder/.rase-stamp" 2>/dev/null)" = "$stamp" ]; then return; fi
    python=$(python_base)
    command -v gcc >/dev/null 2>&1 || command -v "${CC:-cc}" >/dev/null 2>&1 || install gcc libc6-dev
    if [ ! -x "$folder/bin/python" ]; then
        say "making the virtual environment $folder"
        "$python" -m venv "$folder"
    fi
    say "building the kernels and installing rase[$extras] (two to three minutes on two cores)"
    "$folder/bin/python" -m pip install -q -e ".[$extras]"
    echo "$stamp" >"$folder/.rase-stamp"
}
