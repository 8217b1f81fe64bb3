# Read by the scripts beside it: `run MEMORY CLASS ARGUMENT...`.
# JAVA_OPT_EXT comes after our memory settings and so overrides them, as in the official image.
run() {
  memory=$1
  shift
  # shellcheck disable=SC2086 # options are words
  exec java $memory -Drocketmq.home.dir="$ROCKETMQ_HOME" \
    --add-opens=java.base/java.nio=ALL-UNNAMED --add-opens=java.base/sun.nio.ch=ALL-UNNAMED \
    --add-exports=java.base/jdk.internal.ref=ALL-UNNAMED \
    ${JAVA_OPT_EXT:-} -cp "$ROCKETMQ_HOME/conf:$ROCKETMQ_HOME/lib/*" "$@"
}
