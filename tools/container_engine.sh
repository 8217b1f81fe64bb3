#!/bin/sh
# Runs a command where a container engine answers and RocketMQ's images are at hand.
#
#   tools/container_engine.sh COMMAND [ARGUMENT...]
#
#   ROCKETMQ_VERSIONS  the images wanted (default "4.9.7 5.5.0")
#   PYTHON             the Python that has rocketmq_aio (default .venv/bin/python, then python3)
#
# An engine that runs already is used as it is. Otherwise root gets a private one (Debian's
# docker.io, installed if it is missing, as is docker-compose) in a temporary folder; nothing of it stays: neither
# containers and images nor the bridge, its firewall rules and the forwarding switch.
# An image that cannot be pulled is built (tools/standin-image).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
wait_half_seconds=120
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  if [ -x "$root/.venv/bin/python" ]; then PYTHON=$root/.venv/bin/python; fi
fi
export PYTHON

folder=
daemon=

say() { echo "container_engine: $*" >&2; }

install_engine() {
  missing=
  command -v dockerd >/dev/null || missing="$missing docker.io"
  command -v debootstrap >/dev/null || missing="$missing debootstrap"
  docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null ||
    missing="$missing docker-compose"
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null || { say "no engine runs; install:$missing"; exit 1; }
  say "installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  # What an earlier `apt-get update` brought may be too old to install from.
  # shellcheck disable=SC2086
  apt-get install -y -qq --no-install-recommends $missing iptables >/dev/null 2>&1 || {
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends $missing iptables >/dev/null
  }
}

start_engine() {
  [ "$(id -u)" = 0 ] || { say "no engine answers, and only root can start one"; exit 1; }
  install_engine
  folder=$(mktemp -d "${TMPDIR:-/tmp}/rocketmq-engine-XXXXXX")
  remember_network
  export DOCKER_HOST="unix://$folder/docker.sock"
  # Away from the terminal's Ctrl-C, which is for the command; dead with us even if we are killed.
  setsid setpriv --pdeathsig TERM dockerd --data-root "$folder/data" --exec-root "$folder/exec" \
    -H "$DOCKER_HOST" --pidfile "$folder/pid" >"$folder/log" 2>&1 </dev/null &
  daemon=$!
  tries=0
  until docker info >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt "$wait_half_seconds" ] || ! kill -0 "$daemon" 2>/dev/null; then
      say "the engine did not start:"
      tail -20 "$folder/log" >&2
      exit 1
    fi
    sleep 0.5
  done
}

remember_network() {
  forwarding=$(cat /proc/sys/net/ipv4/ip_forward)
  bridge_before=$(ip -o link show docker0 2>/dev/null || true)
  for tables in iptables ip6tables; do
    command -v "$tables" >/dev/null || continue
    "$tables" -S FORWARD 2>/dev/null | head -1 >"$folder/$tables.policy" || true
    "$tables" -S 2>/dev/null | grep -q '^-N DOCKER' && : >"$folder/$tables.keep"
  done
  return 0
}

restore_network() {
  if [ -z "$bridge_before" ]; then ip link delete docker0 2>/dev/null || true; fi
  for tables in iptables ip6tables; do
    [ -s "$folder/$tables.policy" ] || continue
    # shellcheck disable=SC2046 # the words of the policy are the arguments
    "$tables" $(cat "$folder/$tables.policy") || true
    [ -e "$folder/$tables.keep" ] || remove_chains "$tables"
  done
  echo "$forwarding" >/proc/sys/net/ipv4/ip_forward
  rmdir /sys/fs/cgroup/docker /sys/fs/cgroup/*/docker 2>/dev/null || true # only if empty
}

remove_chains() { # TABLES_PROGRAM
  for table in filter nat; do
    "$1" -t "$table" -S 2>/dev/null | grep -e '^-A .*DOCKER' -e '^-A .*docker0' | sed 's/^-A/-D/' |
      while read -r rule; do
        # shellcheck disable=SC2086
        "$1" -t "$table" $rule || true
      done
    chains=$("$1" -t "$table" -S 2>/dev/null | sed -n 's/^-N \(DOCKER[^ ]*\)$/\1/p')
    for chain in $chains; do "$1" -t "$table" -F "$chain" || true; done
    for chain in $chains; do "$1" -t "$table" -X "$chain" || true; done
  done
}

stop_engine() {
  status=$?
  trap '' INT TERM HUP
  if [ -n "$daemon" ]; then
    if kill -0 "$daemon" 2>/dev/null; then
      # shellcheck disable=SC2046
      docker rm -f $(docker ps -aq) >/dev/null 2>&1 || true
      docker network prune -f >/dev/null 2>&1 || true
      kill "$daemon" 2>/dev/null || true
    fi
    wait "$daemon" 2>/dev/null || true
    restore_network
  fi
  if [ -n "$folder" ]; then rm -rf --one-file-system "$folder"; fi
  exit "$status"
}

get_images() {
  for version in ${ROCKETMQ_VERSIONS:-4.9.7 5.5.0}; do
    image=apache/rocketmq:$version
    docker image inspect "$image" >/dev/null 2>&1 && continue
    say "pulling $image"
    docker pull -q "$image" >/dev/null 2>&1 && continue
    say "no registry has it for us: building a stand-in"
    "$here/standin-image/build.sh" "$version"
  done
}

[ $# -gt 0 ] || { say "usage: $0 COMMAND [ARGUMENT...]"; exit 2; }
trap stop_engine EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if ! timeout 10 docker info >/dev/null 2>&1; then
  start_engine
  # Its reaper is an image of its own; ours is a process, and the engine goes anyway.
  export TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1
fi
get_images
"$@"
