#!/usr/bin/env bash
# Shows the calls of Sheaf with grpcurl, one after another, against a store on 127.0.0.1:7600. This script neither
# retries calls nor checks data. sheaf_client.sh does both.
set -euo pipefail

grpcurl -plaintext 127.0.0.1:7600 list
grpcurl -plaintext -d '{"key":{"id":42},"data":"aGVsbG8=","attributes":{"colour":"Ymx1ZQ=="}}' \
  127.0.0.1:7600 sheaf.record.v1.RecordService/Put
grpcurl -plaintext -d '{"key":{"id":42}}' 127.0.0.1:7600 sheaf.record.v1.RecordService/Get
grpcurl -plaintext -d '{}' 127.0.0.1:7600 sheaf.record.v1.RecordService/Scan
