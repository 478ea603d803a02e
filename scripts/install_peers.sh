#!/usr/bin/env bash
# Put the peers under .peers/: the official ACP SDKs, for tests/interop, a published client of the
# REST contract, acpx, a published ACP client for the command line, and the TypeScript compiler with a Node that runs
# TypeScript, for examples/typescript.
#
# Takes nothing; gives .peers/py-v1, .peers/py-v2 (virtual environments), .peers/node, .peers/qwen, .peers/acpx and
# .peers/typescript. Each is made anew when its version below has changed, and left alone when it is there. Needs python3 with venv, node and
# npm. Quiet when all is well.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
PEERS=.peers
PY_V1='agent-client-protocol[http]==0.12.1'
PY_V2='agent-client-protocol[http]==1.0.0rc3'
NODE_SDK=@agentclientprotocol/sdk@2.4.0
# The ACP SDK leaves the choice of a WebSocket to its user.
NODE_WS=ws@8.22.2
REST_SDK=@qwen-code/sdk@0.1.14
ACPX=acpx@0.19.1
TYPESCRIPT=typescript@5.9.3
# The REST client and acpx need a newer Node than the ACP SDK does, so they bring their own: node_modules/node/bin/node.
NEW_NODE=node@26.10.0

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
  "$PEERS/$1/bin/python" -m pip install -qq --disable-pip-version-check "$2"
  done_with "$1" "$2"
}

# node_peer NAME "PACKAGE…" "LINK=FOLDER…"
node_peer() {
  is_there "$1" "$2" && return
  start_over "$1"
  printf '{"private": true, "type": "module"}\n' >"$PEERS/$1/package.json"
  # shellcheck disable=SC2086 # several packages
  npm install --prefix "$PEERS/$1" --silent --no-fund --no-audit --save-exact $2
  # A module finds its packages from where it stands. So our modules stand here too, and are run with
  # --preserve-symlinks-main.
  for link in $3; do ln -s "../../${link#*=}" "$PEERS/$1/${link%%=*}"; done
  done_with "$1" "$2"
}

for program in node npm; do
  command -v "$program" >/dev/null || { echo "install_peers: $program is not on PATH; install Node 20 or newer" >&2; exit 1; }
done
python_peer py-v1 "$PY_V1"
python_peer py-v2 "$PY_V2"
node_peer node "$NODE_SDK $NODE_WS" "agents=tests/interop/agents clients=tests/interop/clients"
node_peer qwen "$REST_SDK $NEW_NODE" "clients=tests/interop/clients"
node_peer acpx "$ACPX $NEW_NODE" ""
node_peer typescript "$TYPESCRIPT $NEW_NODE" ""
