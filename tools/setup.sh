#!/bin/sh
# Prepares a fresh machine: Debian packages when missing (as root), the virtual
# environment, PyTorch's CPU build, and the package with its native program.
set -eu
PYTHON=${PYTHON:-python3.11}
VENV=${VENV:-.venv}

say() { printf 'setup: %s\n' "$*"; }

missing=""
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v runc >/dev/null 2>&1 || [ -x /usr/sbin/runc ] || missing="$missing runc" # for tests
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
if ! ldconfig -p 2>/dev/null | grep -q libseccomp.so.2; then missing="$missing libseccomp2"; fi
[ -e /usr/include/stdlib.h ] || missing="$missing libc6-dev"

if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    say "installing Debian packages:$missing"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
  else
    say "these packages are missing and only root can install them:$missing"
    say "run: sudo apt-get install$missing"
    exit 2
  fi
else
  say "Debian packages are there (bubblewrap, libseccomp2, runc, a C compiler)"
fi

if ! command -v "$PYTHON" >/dev/null 2>&1; then
  if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    PYTHON=python3
  else
    say "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"
    exit 2
  fi
fi

if [ ! -x "$VENV/bin/python" ]; then
  say "creating $VENV with $($PYTHON --version)"
  "$PYTHON" -m venv "$VENV"
fi

if ! "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
  say "installing PyTorch (CPU build where the index has one)"
  "$VENV/bin/pip" install -q torch==2.13.0
fi
say "installing trialyard with its development tools"
"$VENV/bin/pip" install -q -e '.[train,hf,report,dev]'
say "done: $("$VENV/bin/python" -c 'import trialyard; print("trialyard", trialyard.__version__)')"
