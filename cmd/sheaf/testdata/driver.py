# Writes with the client of docs/clients.md until standard input says "stop", a round a line, then reads everything back.
import sys, threading
from sheaf_client import Store, pb

store, stop, known, id = Store(sys.argv[1]), threading.Event(), {}, 0
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
while not stop.is_set():
    batch = {id + n: b"batch %d" % (id + n) * 20 for n in range(50)}
    failed = store.put_many(batch)
    assert not failed, failed
    known.update(batch)
    id += 50
    store.put(pb.RecordKey(id=id), b"one")
    assert store.get(pb.RecordKey(id=id)) == b"one"
    known[id] = b"one"
    if id % 3 == 0:  # and again, as another version
        store.put(pb.RecordKey(id=id), b"two")
        known[id] = b"two"
    id += 1
    print("round", id, flush=True)
found, failed = store.get_many(known)
assert not failed, failed
wrong = [n for n in known if found.get(n) != known[n]]
assert not wrong, wrong
print("all", len(known), flush=True)
