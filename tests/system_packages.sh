#!/usr/bin/env bash
# Installs what tests need from the system's packages: services and libraries of storage backends, and what watches engines.
#
# What cannot be installed is reported with the reason, and the tests that need it are skipped.
set -uo pipefail

readonly INSTALL_S=${INSTALL_S:-300}

# Install what $1 names if its programs $2 are not there; the packages follow.
install() {
    local what=$1 programs=$2 program is_missing=
    shift 2
    for program in $programs; do
        command -v "$program" > /dev/null || is_missing=yes
    done
    [ -z "$is_missing" ] && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
        echo "$what: no right to install $*; tests that need them are skipped"
        return
    fi
    export DEBIAN_FRONTEND=noninteractive
    if ! timeout "$INSTALL_S" sh -c "apt-get update -qq && apt-get install -y -qq $*" > /dev/null 2>&1; then
        echo "$what: apt-get cannot install $*; tests that need them are skipped"
    fi
}

# Without the library the program counts as missing.
storage_programs=redis-server
ldconfig -p | grep -q libibverbs.so.1 || storage_programs="redis-server libibverbs.so.1"
install storage "$storage_programs" redis-server libibverbs1 libnuma1 libcurl4 liburing2 librdmacm1
install monitoring "prometheus promtool chromium" --no-install-recommends prometheus chromium
