"""Compares a store with an archive: python3 compare.py LISTING GRPCURL...

LISTING is a file with the output of examples/archive/read_archive.py. GRPCURL... is a command that ends with the address
of the store: grpcurl with its options. Neither this program nor grpcurl contains code of Sheaf. All records of the store
are scanned, and those above 1 MiB are downloaded. Group, id, commit time, size and SHA-256 of each have to be those of
the listing, and no record may be missing. The program prints the number of records, or the differences.
"""
import base64
import hashlib
import json
import subprocess
import sys

SERVICE = "sheaf.record.v1.RecordService/"
BIG = 1 << 20  # scans leave out the data of larger records


def call(command, method, request):
    """Calls a method, and returns its answers."""
    done = subprocess.run(command[:-1] + ["-d", json.dumps(request), command[-1], SERVICE + method],
                          stdout=subprocess.PIPE, check=True, text=True)
    answers, text, decoder = [], done.stdout.strip(), json.JSONDecoder()
    while text:
        answer, end = decoder.raw_decode(text)
        answers.append(answer)
        text = text[end:].lstrip()
    return answers


def content(command, record):
    """Returns the data of a record of a scan."""
    if int(record.get("sizeBytes", 0)) <= BIG:
        return base64.b64decode(record.get("data", ""))
    answers = call(command, "Download", {"key": record["key"], "version": record["version"]})
    return b"".join(base64.b64decode(a["chunk"]["data"]) for a in answers if "chunk" in a)


def scan(command):
    """Returns all records of a store: (group, id) to (commit time, size, SHA-256)."""
    found = {}
    for answer in call(command, "Scan", {}):
        for r in answer.get("records", []):
            data = content(command, r)
            key = (r["key"]["group"], int(r["key"].get("id", 0)))
            found[key] = (int(r["commitTimeUnixNs"]), len(data), hashlib.sha256(data).hexdigest())
    return found


def listed(name):
    """Returns all records of a listing of an archive, in the same form."""
    records = {}
    with open(name, encoding="utf-8") as lines:
        for line in lines:
            words = line.split()
            if words[1] == "refused:":
                sys.exit(f"the archive cannot be read: {line}")
            if words[1] != "through":
                group, record, _, commit, size, digest = words
                records[group, int(record)] = (int(commit), int(size), digest)
    return records


def main(listing, *command):
    want, got = listed(listing), scan(list(command))
    wrong = [f"group {group}, record {record}: the archive has {want.get((group, record))}, the store has "
             f"{got.get((group, record))}" for group, record in sorted(want.keys() | got.keys())
             if want.get((group, record)) != got.get((group, record))]
    print(*wrong[:20], sep="\n", end="\n" if wrong else "")
    if wrong or not want:
        sys.exit(f"{len(wrong)} of {len(want)} records of the archive differ")
    print(f"{len(want)} records are equal, {sum(size for _, size, _ in want.values())} bytes")


main(*sys.argv[1:])
