#!/bin/sh
# Runs tests beside each other; if a few of them fail, runs these once more, alone.
#
#   tools/run_tests.sh [arguments of pytest]
#
# Most of what is tested has deadlines, and brokers and Sparks beside each other can keep a small
# machine busy for longer than these allow.  What fails alone too is a fault, and so is what fails
# in numbers; what passed only alone is printed with its reason, to be looked into.
set -u

MOST=3
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
trap 'exit 130' INT TERM

.venv/bin/pytest -o cache_dir="$cache" "$@"
status=$?
[ "$status" -eq 1 ] || exit "$status"

failed=$(grep -c '": true' "$cache/v/cache/lastfailed")
[ "$failed" -le "$MOST" ] || exit "$status"

printf '\n%s failed beside others; once more, alone:\n' "$failed"
.venv/bin/pytest -o cache_dir="$cache" --last-failed "$@" -n 0 --verbose
