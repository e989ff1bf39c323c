#!/usr/bin/env bash
# Chromium for the browser tests. Without one those tests skip on a person's machine; a CI run installs it, so that nothing skips there.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "${CI:-}" != true ]; then
    echo "The browser tests will be skipped: install Chromium (on Debian and Ubuntu: apt-get install chromium), then run make test again."
    exit 0
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo -n"
# stdout of apt is noise unless it fails, and then stderr says why.
if ! { $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends chromium; } >/dev/null; then
    echo "error: CI needs Chromium for the browser tests, and 'apt-get install chromium' failed; see the lines above." >&2
    exit 1
fi
