#!/usr/bin/env bash
# Install npm busmq for the peer tests. Without Node those tests skip on a person's machine; a CI run installs Node, so that nothing skips there.
set -euo pipefail
cd "$(dirname "$0")"

if ! { command -v node && command -v npm; } >/dev/null; then
    if [ "${CI:-}" != true ]; then
        echo "The tests against npm busmq will be skipped: install Node.js 18 or newer with npm, then run make test again."
        exit 0
    fi
    sudo=""
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    # stdout of apt is noise unless it fails, and then stderr says why.
    if ! { $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends nodejs npm; } >/dev/null; then
        echo "error: CI needs Node.js and npm for the peer tests, and 'apt-get install nodejs npm' failed; see the lines above." >&2
        exit 1
    fi
fi

# No scripts of packages run: busmq needs none.
npm ci --ignore-scripts --no-progress --loglevel=error || {
    echo "error: npm could not install tests/peers/package-lock.json; see the lines above. Is the npm registry reachable?" >&2
    exit 1
}
touch node_modules/.installed
