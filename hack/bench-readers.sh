#!/usr/bin/env bash
# Makes the environment bin/readers of what bench/readers/requirements.txt lists and of sheafdb as it is in python/, and
# runs `sheaf-bench readers` in it with the arguments. The environment is made again when the requirements change.
# torch is measured if Debian's package python3-torch is installed and fits this Python. It is not installed here, because
# it is large.
set -euo pipefail
cd "$(dirname "$0")/.."
hack/clients/packages.sh python
dir=bin/readers
pip=("$dir/bin/python" -m pip --disable-pip-version-check --quiet)
if ! cmp -s bench/readers/requirements.txt "$dir/requirements.txt"; then
  rm -rf "$dir"
  python3 -m venv "$dir"
  "${pip[@]}" install -r bench/readers/requirements.txt
  cp bench/readers/requirements.txt "$dir/requirements.txt"
fi
"${pip[@]}" install --force-reinstall --no-deps ./python
exec bin/sheaf-bench readers --python "$dir/bin/python" "$@"
