#!/usr/bin/env bash
# Installs what the programs need into the folders venv and gen beside this file, and runs one of them: sheaf_client.py,
# or the one that is named.
set -euo pipefail
cd "$(dirname "$0")"
[ -x venv/bin/pip ] || python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
./generate.sh venv/bin/python ../../api gen
exec venv/bin/python "${1:-sheaf_client.py}"
