#!/usr/bin/env bash
# Builds the wheel of python/, installs it into an empty environment, and runs its tests against what was installed.
# ARGS are arguments for pytest. The folder bin/sheafdb keeps both environments: that of the build and that of the
# tests, which is made again when python/requirements-test.txt changes. SHEAF_SOAK adds what takes long to install.
set -euo pipefail
cd "$(dirname "$0")/../.."
hack/clients/packages.sh python
dir=$PWD/bin/sheafdb
pip=(-m pip --disable-pip-version-check --quiet)
pins=python/requirements-test.txt
cmp LICENSE python/LICENSE || {
  echo "hack/sheafdb/test.sh: python/LICENSE differs from LICENSE: copy it" >&2
  exit 1
}

mkdir -p "$dir"
if ! cmp -s "$pins" "$dir/pins"; then
  rm -rf "$dir/build" "$dir/env" "$dir/pins"
  python3 -m venv "$dir/env" &
  python3 -m venv "$dir/build"
  "$dir/build/bin/python" "${pip[@]}" install --no-compile --constraint "$pins" hatchling
  wait $! # the environment of the tests
fi
rm -rf "$dir/dist"
"$dir/build/bin/python" "${pip[@]}" wheel --no-deps --no-build-isolation --wheel-dir "$dir/dist" ./python
wheel=$(echo "$dir"/dist/*)
case "$wheel" in
*/sheafdb-*-py3-none-any.whl) ;;
*) echo "hack/sheafdb/test.sh: this is not one wheel for every platform: $wheel" >&2; exit 1 ;;
esac
"$dir/env/bin/python" "${pip[@]}" uninstall --yes sheafdb 2>/dev/null || true
# What is imported is compiled then: it is a small part of what is installed.
"$dir/env/bin/python" "${pip[@]}" install --no-compile --constraint "$pins" "$wheel"
if ! [ -e "$dir/pins" ]; then
  # Nothing but the wheel and what it asks for is here yet.
  "$dir/env/bin/python" -c 'import sheafdb, sheafdb.ml; print("sheafdb", sheafdb.__version__, "is installed")'
  "$dir/env/bin/python" "${pip[@]}" install --no-compile --constraint "$pins" pytest
  cp "$pins" "$dir/pins"
fi
"$dir/env/bin/python" "${pip[@]}" install --no-compile --constraint "$pins" -r python/requirements-tools.txt

# The tests start stores of this program. Without it they are skipped, but a gate must run them.
export SHEAF_BINARY=${SHEAF_BINARY-$PWD/bin/sheaf}
if ! [ -x "$SHEAF_BINARY" ]; then
  echo "hack/sheafdb/test.sh: there is no program $SHEAF_BINARY: run make build first" >&2
  exit 1
fi
if [ -n "${SHEAF_SOAK-}" ]; then
  hack/clients/packages.sh jre
  "$dir/env/bin/python" "${pip[@]}" install --no-compile --constraint "$pins" -r python/requirements-soak.txt
fi
cd python/tests
tests() { "$dir/env/bin/python" -P -m pytest -c ../pyproject.toml --rootdir .. -p no:cacheprovider "$@"; }
if [ -n "${ARGS-}" ]; then
  # shellcheck disable=SC2086 # several arguments
  tests . $ARGS
  exit
fi
# Half of the time is that of the loader, whose tests start processes and wait for them. They run beside the others.
code=0
tests test_loader.py >"$dir/loader.txt" 2>&1 &
tests . --ignore test_loader.py || code=$?
wait $! || code=$?
cat "$dir/loader.txt"
exit $code
