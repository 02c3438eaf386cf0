"""Lists the records of an archive of Sheaf as of a time: python3 read_archive.py FOLDER [TIME [KEYS]]

FOLDER is the archive of one store on a file system, URL/<store UUID>. TIME is in Unix nanoseconds; without it, or with
"", it is the archive's end. KEYS is the folder of the keys. Each group has a line with its archived index, or why it
cannot be read as of TIME. Lines of records follow: group, id, version, commit time, size, SHA-256 of the data.
"""
import decryption
import hashlib
import itertools
import json
import pathlib
import struct
import sys
import uuid

PUT, DELETE, STATE, CHUNK, TABLE = 1, 2, 5, 1 << 20, []  # kinds of entries; length of a chunk; table of the CRC
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)


def crc(data):
    value = 0xFFFFFFFF
    for b in data:
        value = TABLE[(value ^ b) & 255] ^ value >> 8
    return value ^ 0xFFFFFFFF


def check(right, name, what):
    if not right:
        raise SystemExit(f"object {name}: {what}")


def read_object(root, name, kind):
    """Returns the header of an object, the content after it, and the CRC of the envelope."""
    check((root / name).is_file(), name, "it is missing")
    b = (root / name).read_bytes()
    check(len(b) >= 128 and b[:8] == b"SHEAFARC", name, "it is no object of an archive")
    version, checksum, store, object_id = struct.unpack_from("<II16s16s", b, 8)
    check(checksum == crc(b[:12] + b[16:128]), name, "the checksum of its envelope is wrong")
    check(version == 1, name, f"its version is {version}, this program knows 1")
    check(store == uuid.UUID(root.name).bytes and b[48] == kind, name, "it is of another store or kind")
    check(b[49] < 2 and not any(b[50:56] + b[88:128]) and any(b[72:88]) == b[49], name, "bad cipher or reserved bytes")
    cipher, tag = (decryption.cipher(b[72:88], object_id, name), 16) if b[49] else (None, 0)
    length, header = struct.unpack_from("<QQ", b, 56)
    check(2 <= header <= min(length, 16 << 20), name, "the length of its header is wrong")
    check(len(b) == 128 + length + (tag + 4) * -(-length // CHUNK), name, "its size is not what its envelope says")
    content = b""
    for i in range(-(-length // CHUNK)):
        data, number = b[128 + i * (CHUNK + tag + 4):][:min(CHUNK, length - i * CHUNK) + tag + 4], struct.pack("<Q", i)
        data, stored = data[:-4], struct.unpack("<I", data[-4:])[0]
        check(stored == crc(data + object_id + number), name, f"the checksum of chunk {i} is wrong")
        content += cipher.decrypt(bytes(4) + number[::-1], data, b[:128]) if cipher else data
    return json.loads(content[:header]), content[header:], checksum


def read_segment(root, name, b, head):
    """Returns the puts and deletes of a segment as (index, kind, codec, id, commit time, data)."""
    check(b[:8] == b"SHEAFSEG" and struct.pack("<I", crc(b[:124])) == b[124:128], name, "it has no segment")
    check(b[8:16] in (b"\1" + bytes(7), b"\2" + bytes(7)), name, "the segment is of a newer format")
    check(b[16:48] == uuid.UUID(root.name).bytes + uuid.UUID(head["group"]).bytes, name, "a foreign segment")
    entries, indexes, at = [], [0], 128
    while at < len(b):
        check(b[at:at + 4] == b"\xf5\x53\x68\xe6" and len(b) >= at + 80, name, f"no frame begins at {at}")
        frame_crc, entry_crc = struct.unpack_from("<II", b, at + 4)
        check(frame_crc == crc(b[at + 8:at + 80] + b[48:56] + struct.pack("<Q", at)), name, f"bad frame at {at}")
        kind, codec, skip, size, record, index, _, commit = struct.unpack_from("<BBIIqQQq", b, at + 14)
        data = at + 80 + skip
        check(entry_crc == crc(b[at + 14:data + size]), name, f"the checksum of index {index} is wrong")
        check(kind != STATE and index > indexes[-1], name, f"index {index} follows index {indexes[-1]}")
        indexes.append(index)
        if kind in (PUT, DELETE):
            entries.append((index, kind, codec, record, commit, b[data:data + size]))
        at = (data + size + 7) // 8 * 8
    found = indexes[1:2] + indexes[-1:] + [len(entries)]
    check(at == len(b) and found == [head["first"], head["last"], head["records"]], name, f"it has {found}")
    return entries


def read_group(root, group, logs):
    """Returns the archived facts about a group, its entries in order, and (readAt, after) of its pieces."""
    g, parts, reads = {"segments": [], "log": 0, "through": 0, "floor": None, "holes": []}, [], []
    for catalogue in sorted((root / "g" / group / "cat").glob("*"))[-1:]:
        g.update(read_object(root, f"g/{group}/cat/{catalogue.name}", 5)[0])
    for base in sorted((root / "g" / group / "base").glob("*"))[-1:]:
        base = read_object(root, f"g/{group}/base/{base.name}", 10)[0]
        if all(s in g["segments"] for s in base["replaces"]):
            g["segments"] = base["segments"] + [s for s in g["segments"] if s not in base["replaces"]]
            g["floor"], g["holes"] = max(g["floor"], base["floor"]), g["holes"] + base.get("holes", [])
    for s in g["segments"]:
        name = "g/{}/seg/{:019}-{:019}-{}".format(group, s["first"], s["last"], s["id"])
        header, content, _ = read_object(root, name, 3)
        check(header["group"] == group and content[48:56].hex() == s["id"], name, "it is another segment")
        parts.append((name, content, header))
    old = [p for n in logs if n <= g["log"] for p in logs[n][1]["pieces"] if p["group"] == group]
    for name, header, content in map(logs.get, itertools.takewhile(logs.__contains__, itertools.count(g["log"] + 1))):
        for p in header["pieces"]:
            piece, content = content[:p["bytes"]], content[p["bytes"]:]
            if p["group"] != group:
                continue
            check(p["after"] <= g["through"], name, f"an object before it is missing: group {group} has a gap")
            g["floor"] = p["floor"] if g["floor"] is None else g["floor"]
            gap = [{"from": p["after"] + 1, "to": p["floor"]}] if p["floor"] > max(p["after"], g["floor"]) else []
            g.update(holes=g["holes"] + p.get("holes", []) + gap, name=p["name"], through=max(g["through"], p["through"]))
            reads.append((0 if p.get("gone") else p["readAt"], p["after"]))
            parts += [(name, piece, p)] if piece else []
    times = [p["readAt"] for p in old if not p.get("gone")] + [at for at, _ in reads]
    g["covered"] = max(times + [p[2]["lastCommit"] for p in parts] + [g.get("covered", 0)])
    entries = {e[0]: e for part in parts for e in read_segment(root, *part)}
    return g, [entries[index] for index in sorted(entries)], reads


def refusal(g, entries, reads, time):
    """Returns the reason why a group cannot be read exactly as of a time, or None if it can be read."""
    lo = hi = g["through"]
    if time is not None:
        if time > g["covered"]:
            return "not archived yet"
        hi = min([e[0] - 1 for e in entries if e[4] > time], default=hi)
        lo = max([e[0] for e in entries if e[4] <= time] + [a for at, a in reads if 0 < at <= time and a <= hi] + [0])
    holes = ["in the hole from {from} to {to}".format(**h) for h in g["holes"] if lo < h["to"] and hi >= h["from"]]
    return f"below the history floor {g['floor']}" if lo < g["floor"] else holes[0] if holes else None


def main(folder, time="", keys=None):
    root, time, logs, decryption.FOLDER = pathlib.Path(folder), int(time) if time else None, {}, keys
    read_object(root, "archive.json", 1)
    for path in sorted((root / "log/00").glob("*")):
        number, name = int(path.name), "log/00/" + path.name
        header, content, envelope = read_object(root, name, 2)
        check(number - 1 not in logs or header["previous"] == before, name, "it does not follow the object before it")
        logs[number], before = (name, header, content), envelope
    groups = {p["group"] for _, header, _ in logs.values() for p in header["pieces"]}
    for group in sorted(groups | {path.parent.name for path in root.glob("g/*/cat")}):
        g, entries, reads = read_group(root, group, logs)
        check("name" in g, f"log/00/{1:019}", f"it is missing, and group {group} has no catalogue")
        why = refusal(g, entries, reads, time)
        print(g["name"], "refused: " + why if why else f"through index {g['through']}")
        records = {} if why else {e[3]: e for e in entries if time is None or e[4] <= time}
        for index, kind, codec, record, commit, data in sorted(e for e in records.values() if e[1] == PUT):
            if codec == 1:
                blob, size, want = struct.unpack_from("<16sQI", data)
                name = f"g/{group}/blob/{uuid.UUID(bytes=blob)}"
                header, data, _ = read_object(root, name, 4)
                check((header["group"], len(data), crc(data)) == (group, size, want), name, "it is another blob")
            print(g["name"], record, index, commit, len(data), hashlib.sha256(data).hexdigest())


main(*sys.argv[1:])
