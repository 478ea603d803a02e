#!/usr/bin/env bash
# Put `qwen serve` and the Node it needs under .peers/qwen-serve, for make bench. Some 350 MB; tests need none of it.
#
# Takes nothing; leaves it alone when it is there in this version. Needs npm. Quiet when all is well.
set -euo pipefail
cd "$(dirname "$0")/../.."

PACKAGES="@qwen-code/qwen-code@0.24.4 node@26.10.0"
PEER=.peers/qwen-serve

[ "$(cat "$PEER/.installed" 2>/dev/null)" = "$PACKAGES" ] && exit
command -v npm >/dev/null || { echo "install_qwen_serve: npm is not on PATH; install Node 20 or newer" >&2; exit 1; }
rm -rf "$PEER"
mkdir -p "$PEER"
printf '{"private": true, "type": "module"}\n' >"$PEER/package.json"
# shellcheck disable=SC2086 # several packages
npm install --prefix "$PEER" --silent --no-fund --no-audit --save-exact $PACKAGES
printf '%s\n' "$PACKAGES" >"$PEER/.installed"
