#!/usr/bin/env bash
# Put the official ACP SDKs under .peers/, for tests/interop and bench/stdio.py.
#
# Takes nothing; gives .peers/py-v1, .peers/py-v2 (virtual environments) and .peers/node. Each is made anew when its
# version below has changed, and left alone when it is there. Needs python3 with venv, node and npm. Quiet when all
# is well.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
PEERS=.peers
PY_V1=agent-client-protocol==0.12.1
PY_V2=agent-client-protocol==1.0.0rc3
NODE_SDK=@agentclientprotocol/sdk@2.4.0

is_there() { [ "$(cat "$PEERS/$1/.installed" 2>/dev/null)" = "$2" ]; }

start_over() {
  rm -rf "${PEERS:?}/$1"
  mkdir -p "$PEERS/$1"
}

done_with() { printf '%s\n' "$2" >"$PEERS/$1/.installed"; }

python_peer() {
  is_there "$1" "$2" && return
  start_over "$1"
  "$PYTHON" -m venv "$PEERS/$1"
  "$PEERS/$1/bin/python" -m pip install -qq --disable-pip-version-check --pre "$2"
  done_with "$1" "$2"
}

node_peer() {
  is_there node "$1" && return
  start_over node
  printf '{"private": true, "type": "module"}\n' >"$PEERS/node/package.json"
  npm install --prefix "$PEERS/node" --silent --no-fund --no-audit --save-exact "$1"
  # A module finds its packages from where it stands. So our modules stand here too, and are run with
  # --preserve-symlinks-main.
  ln -s ../../tests/interop/agents "$PEERS/node/agents"
  ln -s ../../bench/peers "$PEERS/node/bench"
  done_with node "$1"
}

for program in node npm; do
  command -v "$program" >/dev/null || { echo "install_peers: $program is not on PATH; install Node 20 or newer" >&2; exit 1; }
done
python_peer py-v1 "$PY_V1"
python_peer py-v2 "$PY_V2"
node_peer "$NODE_SDK"
