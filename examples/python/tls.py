"""Puts and gets a record over TLS. The store identifies the caller by a certificate or by a token.

`sheaf dev --tls` prints the variables SHEAF_CA, SHEAF_CERT and SHEAF_KEY. SHEAF_TOKEN_FILE names a file with a
token that identifies the caller, who then needs no certificate. SHEAF_ADDRESS is the address of the store.
"""
import os
import grpc
from sheaf_client import pb, put_request, rpc

def read(path):
    with open(path, "rb") as f:
        return f.read()

class Token(grpc.AuthMetadataPlugin):
    """Sends the token with each call. A new token in the file is used from the next call on."""
    def __call__(self, context, callback):
        callback([("authorization", "Bearer " + read(os.environ["SHEAF_TOKEN_FILE"]).decode().strip())], None)

# The channel keeps the present content of these files. Make a new channel before the certificate expires.
if "SHEAF_TOKEN_FILE" in os.environ:
    by_authority = grpc.ssl_channel_credentials(read(os.environ["SHEAF_CA"]))
    credentials = grpc.composite_channel_credentials(by_authority, grpc.metadata_call_credentials(Token()))
else:
    files = (read(os.environ[name]) for name in ("SHEAF_CA", "SHEAF_KEY", "SHEAF_CERT"))
    credentials = grpc.ssl_channel_credentials(*files)
channel = grpc.secure_channel(os.environ.get("SHEAF_ADDRESS", "127.0.0.1:7600"), credentials)

records = rpc.RecordServiceStub(channel)
key = pb.RecordKey(id=42)
print("version", records.Put(put_request(key, b"over TLS"), timeout=5).version)
print(records.Get(pb.GetRequest(key=key), timeout=5).record.data)
