#!/bin/sh
# Gets what a build needs: Debian packages, and a Python environment .venv with libtorch in it.
# Does nothing (in milliseconds) when that was done before. With TUTTI_TORCH=/path/of/libtorch no
# torch is installed. `tools/setup.sh tests` also installs the Python packages that only tests need.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv=$root/.venv

torch_version=2.13.0
debian_packages="clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev mold ccache ninja-build
  cmake g++ pkg-config git python3-venv python3-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev
  doctest-dev libxxhash-dev libpcre2-dev libicu-dev libgloo-dev libbenchmark-dev libssl-dev iproute2"
test_packages="tokenizers transformers sentencepiece safetensors numpy"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

missing_packages() {
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
  for package in $debian_packages; do
    printf '%s\n' "$installed" | grep -qx -- "$package" || printf '%s ' "$package"
  done
}

install_packages() {
  command -v dpkg-query >/dev/null || fail "this is not Debian or Ubuntu: install by hand:" $debian_packages
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  say "missing Debian packages: $missing"
  as_root=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null ||
      fail "neither root nor sudo: ask an administrator for: apt-get install --no-install-recommends $missing"
    as_root=sudo
  fi
  $as_root apt-get update -qq
  $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $missing >&2
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

make_venv() {
  # Tried by running it: a venv whose interpreter has moved, or that another layout left, is made anew.
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return 0
  python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' ||
    fail "torch $torch_version has wheels for Python 3.10 to 3.14; this is $(python3 --version 2>&1)." \
         "Put another python3 first in PATH, or set TUTTI_TORCH to a libtorch folder."
  rm -rf "$venv"
  python3 -m venv "$venv" || fail "python3 -m venv failed; the Debian package python3-venv has what it needs."
}

has_torch() {
  "$venv/bin/python" -c "import importlib.metadata as m, sys
sys.exit(m.version('torch').split('+')[0] != '$torch_version')" 2>/dev/null
}

install_torch() {
  has_torch && return 0
  cpu=torch==$torch_version+cpu
  plain=torch==$torch_version
  set -- "$cpu" "$plain"
  [ ! -e /proc/driver/nvidia/version ] || set -- "$plain" "$cpu"
  say "installing torch $torch_version into .venv (some minutes the first time)"
  log=$(mktemp)
  pip install "$1" numpy 2>"$log" || pip install "$2" numpy 2>>"$log" || {
    cat "$log" >&2
    rm -f "$log"
    fail "pip found no torch $torch_version for $("$venv/bin/python" --version 2>&1) on $(uname -m);" \
         "TUTTI_TORCH=/path/of/libtorch uses another one."
  }
  rm -f "$log"
}

# Runs the function $2 unless it already ran with this very script and TUTTI_TORCH.
once() {
  stamp=$venv/.tutti-$1
  want="$(cksum <"$root/tools/setup.sh") ${TUTTI_TORCH:-wheel}"
  if [ -r "$stamp" ] && read -r have <"$stamp" && [ "$have" = "$want" ]; then return 0; fi
  "$2"
  printf '%s\n' "$want" >"$stamp"
}

set_up() {
  install_packages
  make_venv
  if [ -n "${TUTTI_TORCH:-}" ]; then
    [ -e "$TUTTI_TORCH/include/ATen/ATen.h" ] || fail "TUTTI_TORCH=$TUTTI_TORCH has no include/ATen/ATen.h."
  else
    install_torch
  fi
}

set_up_tests() {
  constraints=$venv/.tutti-constraints
  pip freeze | grep '^torch==' >"$constraints" || true  # they must not bring another torch
  say "installing what the tests compare with: $test_packages"
  pip install -c "$constraints" $test_packages
}

once setup set_up
[ "${1:-}" != tests ] || once tests set_up_tests
