#!/usr/bin/env bash
# Install zoo_plugins into .venv (or $VENV), train ppo_lstm_seq on PendulumNoVel-v1 and show how it learned.
# Arguments go to rl_zoo3.train, for example: bash scripts/demo.sh --seed 1 -n 20000
set -euo pipefail
cd "$(dirname "$0")/.."
VENV="${VENV:-.venv}"

[ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
"$VENV/bin/pip" install --quiet -c constraints.txt -e '.[plots]' 'gymnasium[classic-control]'

"$VENV/bin/python" -m rl_zoo3.train --algo ppo_lstm_seq --env PendulumNoVel-v1 --num-threads 1 --verbose 0 --progress "$@"
"$VENV/bin/python" scripts/show_run.py --algo ppo_lstm_seq --env PendulumNoVel-v1

echo "Watch the agent:"
echo "  $VENV/bin/python -m rl_zoo3.enjoy --algo ppo_lstm_seq --env PendulumNoVel-v1 -f logs"
