#!/usr/bin/env bash
# Debian's Prometheus, for the test of the alerts. Without it that test skips on a person's machine; a CI run installs it, so that nothing skips there.
set -euo pipefail

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi
if [ "${CI:-}" != true ]; then
    echo "The test of the alerts will be skipped: install Prometheus (on Debian and Ubuntu: apt-get install prometheus), then run make test again."
    exit 0
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo -n"
# stdout of apt is noise unless it fails, and then stderr says why.
if ! { $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends prometheus; } >/dev/null; then
    echo "error: CI needs Prometheus, and 'apt-get install prometheus' failed; see the lines above." >&2
    exit 1
fi
