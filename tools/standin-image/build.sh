#!/bin/sh
# Builds a stand-in for apache/rocketmq:VERSION on the engine that `docker` reaches.
#
#   tools/standin-image/build.sh VERSION
#
# For machines that reach no container registry: the base is made by debootstrap from the
# mirror that apt uses here, the servers come from Maven Central. It has the layout and the
# script names of the official image; passing on it says nothing about that image's scripts.
set -eu

version=$1
here=$(cd "$(dirname "$0")" && pwd)
base=rocketmq-aio/java17
context=$(mktemp -d "${TMPDIR:-/tmp}/rocketmq-image-XXXXXX")
trap 'rm -rf --one-file-system "$context"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mirror() { # of the release that runs here, its security and update suites aside
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Release: $VERSION_CODENAME" |
    head -1
}

make_base() {
  # shellcheck disable=SC1091
  . /etc/os-release
  debootstrap --variant=minbase --include=openjdk-17-jre-headless \
    "$VERSION_CODENAME" "$context/base" "$(mirror)" >"$context/log" 2>&1 || {
    tail -20 "$context/log" >&2
    return 1
  }
  rm -rf "$context"/base/var/cache/apt/* "$context"/base/var/lib/apt/lists/*
  tar -C "$context/base" -c . | docker import - "$base" >/dev/null
  rm -rf --one-file-system "$context/base"
}

docker image inspect "$base" >/dev/null 2>&1 || make_base
jars=$("${PYTHON:-python3}" -m rocketmq_aio.testing.jars "$version")
cp -r "$here/bin" "$here/logback.xml" "$here/Dockerfile" "$context/"
cp -r "$jars" "$context/lib"
docker build -q --build-arg "VERSION=$version" -t "apache/rocketmq:$version" "$context" \
  >"$context/log" 2>&1 || {
  tail -20 "$context/log" >&2
  exit 1
}
