#!/usr/bin/env bash
# Installs the requirements of the programs into the folders venv and gen next to this file, and runs the program that
# the argument names. The default is sheaf_client.py.
set -euo pipefail
cd "$(dirname "$0")"
[ -x venv/bin/pip ] || python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
./generate.sh venv/bin/python ../../api gen
exec venv/bin/python "${1:-sheaf_client.py}"
