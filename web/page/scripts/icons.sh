#!/bin/sh
# Draw the icons of the page as PNG from public/assets/mark-1.svg, with chromium. They are committed; run this when the
# drawing changes, under a new name, because browsers keep these files for a year.
set -eu
cd "$(dirname "$0")/../public/assets"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
draw() { # size, ground, share of the picture that the drawing takes, file
  printf '<!doctype html><style>html,body{margin:0;background:%s}img{display:block;width:%s%%;margin:auto;position:absolute;inset:0}</style><img src="file://%s/mark-1.svg">' \
    "$2" "$3" "$PWD" >"$work/icon.html"
  chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 \
    --default-background-color=00000000 --window-size="$1,$1" --user-data-dir="$work/profile" \
    --screenshot="$work/icon.png" "file://$work/icon.html" >/dev/null 2>&1
  mv "$work/icon.png" "$4"
}
draw 192 transparent 100 mark-1-192.png
draw 512 transparent 100 mark-1-512.png
# A mask may take a tenth from each side.
draw 512 '#1d4fd7' 80 mark-1-maskable.png
