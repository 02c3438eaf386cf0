#!/usr/bin/env bash
# generate.sh PYTHON API OUT: generates the folder OUT from the .proto files in the folder API of Sheaf. PYTHON is a
# Python with the packages of requirements.txt.
set -euo pipefail
python=$1 api=$2 out=$3
# The package googleapis-common-protos has google/rpc/status.proto. common is the folder above google/rpc.
common=$("$python" -c 'import google.rpc, os; print(os.path.join(list(google.rpc.__path__)[0], "../.."))')
mkdir -p "$out"
"$python" -m grpc_tools.protoc -I "$api" -I "$common" --python_out="$out" --grpc_python_out="$out" \
  "$api"/sheaf/record/v1/*.proto
