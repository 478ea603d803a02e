#!/usr/bin/env bash
# Run `turnwire check` as the inputs of action.yml say, and leave every kind of report in one directory.
# Inputs come as variables and are never put into a script, so that no input is run as one.
set -euo pipefail

reports=${CHECK_REPORTS:-acp-check}
mkdir -p "$reports"
arguments=(
  check
  --json "$reports/check.json"
  --junit "$reports/check.xml"
  --html "$reports/check.html"
  --badge "$reports/check.svg"
)

# add_each FLAG WORDS: the flag once for each word.
add_each() {
  local words word
  read -r -a words <<<"$2"
  for word in ${words[@]+"${words[@]}"}; do
    arguments+=("$1" "$word")
  done
}

add_each --set "${CHECK_SET:-}"
add_each --case "${CHECK_CASE:-}"
[[ -z ${CHECK_URL:-} ]] || arguments+=(--url "$CHECK_URL")
[[ -z ${CHECK_REGISTRY:-} ]] || arguments+=(--registry "$CHECK_REGISTRY")
[[ -z ${CHECK_BASELINE:-} ]] || arguments+=(--baseline "$CHECK_BASELINE")
[[ ${CHECK_STRICT:-false} != true ]] || arguments+=(--strict)
[[ ${CHECK_CLIENT:-false} != true ]] || arguments+=(--client)
while IFS= read -r line; do
  [[ -z $line ]] || arguments+=("$line")
done <<<"${CHECK_ARGUMENTS:-}"
if [[ -n ${CHECK_COMMAND:-} ]]; then
  # One word for each argument, with quotes as a shell has them and nothing that a shell would run.
  mapfile -d '' -t command < <(xargs printf '%s\0' <<<"$CHECK_COMMAND")
  arguments+=(-- "${command[@]}")
fi

status=0
"${CHECK_PROGRAM:-turnwire}" "${arguments[@]}" | tee "$reports/check.txt" || status=$?
if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
  { echo '```'; tail -n 40 "$reports/check.txt"; echo '```'; } >>"$GITHUB_STEP_SUMMARY"
fi
exit "$status"
