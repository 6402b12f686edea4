#!/usr/bin/env bash
# Install zoo_plugins into .venv (or $VENV), train PPO on three Ray nodes on this machine, and kill one of them meanwhile.
# Each node has an address of its own, in a network namespace, if this is root's and there is iproute2. Otherwise, or with
# SIMULATED=1, they share the machine's. Nothing is left behind, and no other Ray of the machine is touched.
# Arguments go to scripts/cluster_demo.py, for example: bash scripts/cluster_demo.sh --timesteps 50000
set -euo pipefail
cd "$(dirname "$0")/.."
VENV="${VENV:-.venv}"

[ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
"$VENV/bin/pip" install --quiet -c constraints.txt -e '.[ray]' 'gymnasium[classic-control]'

name="zoo-$$"
training=
folder=

make_network() {
    local i
    for i in 1 2 3; do ip netns add "$name-$i" || return; done
    # The bridge is in a namespace too: the machine's own network stays as it is
    ip -n "$name-1" link add eth0 type bridge || return
    for i in 2 3; do
        ip -n "$name-$i" link add eth0 type veth peer name "port$i" netns "$name-1" || return
        ip -n "$name-1" link set "port$i" master eth0 up || return
    done
    for i in 1 2 3; do
        ip -n "$name-$i" link set lo up || return
        ip -n "$name-$i" address add "10.0.0.$i/24" dev eth0 || return
        ip -n "$name-$i" link set eth0 up || return
        ip -n "$name-$i" route add default dev eth0 || return
    done
}

# A namespace has all processes of its node, and no other
remove_network() {
    local i pids
    for i in 1 2 3; do
        [ -e "/run/netns/$name-$i" ] || continue
        while pids=$(ip netns pids "$name-$i") && [ -n "$pids" ]; do
            kill -9 $pids 2>/dev/null || true
            sleep 0.1
        done
        ip netns delete "$name-$i"
    done
}

clean_up() {
    trap '' INT TERM
    [ -z "$training" ] || kill "$training" 2>/dev/null || true
    wait
    remove_network
    rm -rf "$folder"
}

start_ray() {
    local i="$1"
    ip netns exec "$name-$i" "$VENV/bin/ray" start --node-ip-address="10.0.0.$i" --num-cpus=1 \
        --object-store-memory=100000000 "${@:2}" >"$folder/ray.log" 2>&1 || { cat "$folder/ray.log"; exit 1; }
}

trap clean_up EXIT
trap 'exit 130' INT TERM

# Of its own, as Ray notes there which cluster other programs would join. Short, as it is part of the names of sockets
folder=$(mktemp -d "${TMPDIR:-/tmp}/zoo.XXXXXX")
export RAY_TMPDIR="$folder" RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0
# A token of this run, whatever this user has in ~/.ray
RAY_AUTH_TOKEN=$("$VENV/bin/python" -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
unset RAY_ADDRESS

if [ -n "${SIMULATED:-}" ]; then
    echo "Without network namespaces, as SIMULATED is set."
elif make_network 2>"$folder/problem"; then
    start_ray 1 --head --port=6379 --include-dashboard=false
    start_ray 2 --address=10.0.0.1:6379
    start_ray 3 --address=10.0.0.1:6379
    export RAY_ADDRESS=10.0.0.1:6379
    set -- --kill "ip netns pids $name-3 | xargs kill -9" "$@"
else
    echo "Without network namespaces: $(cat "$folder/problem")"
    remove_network
fi
${RAY_ADDRESS:+ip netns exec "$name-1"} "$VENV/bin/python" scripts/cluster_demo.py "$@" &
training=$!
wait "$training"
