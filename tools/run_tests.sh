#!/bin/sh
# Runs tests on JVMs in parallel; if up to three fail, repeats these alone.
#
#   tools/run_tests.sh [arguments of pytest]
#
# Most tests have deadlines, and parallel brokers and Spark sessions can delay a small machine beyond
# them.  A test that also fails alone is a fault, and so are more than three failures.  Failures that
# pass alone are printed with their reason, to be investigated.
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

printf '\n%s failed in parallel; repeated alone:\n' "$failed"
.venv/bin/pytest -o cache_dir="$cache" --last-failed "$@" -n 0 --verbose
