#!/usr/bin/env bash
# Install zoo_plugins with its test tools into .venv (or $VENV) and run the tests.
# Arguments go to pytest, for example: bash scripts/test.sh -m "not slow" -k registry
set -euo pipefail
cd "$(dirname "$0")/.."
VENV="${VENV:-.venv}"

[ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
"$VENV/bin/pip" install --quiet -c constraints.txt -e '.[tests]'

"$VENV/bin/python" -m pytest -n auto --dist loadfile "$@"
