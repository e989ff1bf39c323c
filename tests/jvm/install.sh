#!/usr/bin/env bash
# A JDK and Maven for the Java module. Without them its tests skip on a person's machine; a CI run installs them, so that nothing skips there.
set -euo pipefail

compiler=${JAVA_HOME:+$JAVA_HOME/bin/javac}
[ -x "$compiler" ] || compiler=$(command -v javac || true)
release=$("${compiler:-false}" -version 2>&1 | sed -n 's/^javac \([0-9]*\).*/\1/p' || true)
if [ "${release:-0}" -ge 17 ] && command -v mvn >/dev/null; then exit 0; fi

if [ "${CI:-}" != true ]; then
    echo "The tests of the Java module will be skipped: install a JDK 17 or newer and Maven, then run make test again."
    exit 0
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo -n"
# Releases before this one of Debian and Ubuntu have a default JDK that is too old, later ones none of 17.
jdk() { apt-cache show openjdk-17-jdk-headless >/dev/null 2>&1 && echo openjdk-17-jdk-headless || echo default-jdk-headless; }
# stdout of apt is noise unless it fails, and then stderr says why.
if ! { $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$(jdk)" maven; } >/dev/null; then
    echo "error: CI needs a JDK and Maven for the Java module, and 'apt-get install $(jdk) maven' failed; see the lines above." >&2
    exit 1
fi
