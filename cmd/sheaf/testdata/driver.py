# Drives the client of examples/python; clients_test.go and clients_answers_test.go say how.
import sys, threading, time
from sheaf_client import Failure, Store, pb

store = Store(sys.argv[1])

def live():
    """Writes until standard input says "stop", a round a line, then reads everything back, by id, by scan and by what a watch told."""
    stop, known, id, watched, first = threading.Event(), {}, 0, {}, threading.Event()
    def watch():
        for answer in store.watch("0"):
            first.set()
            watched.update((record.key.id, record.data) for record in answer.records)
    threading.Thread(target=watch, daemon=True).start()
    assert first.wait(60), "no first message of the watch"
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    while not stop.is_set():
        batch = {id + n: b"batch %d" % (id + n) * 20 for n in range(50)}
        failed = store.put_many(batch)
        assert not failed, failed
        known.update(batch)
        id += 50
        version = store.put(pb.RecordKey(id=id), b"one", condition=pb.WriteCondition(if_absent=True))
        assert store.get(pb.RecordKey(id=id)) == b"one"
        known[id] = b"one"
        if id % 3 == 0:  # and again, as another version
            store.put(pb.RecordKey(id=id), b"two", condition=pb.WriteCondition(if_version=version))
            known[id] = b"two"
        id += 1
        print("round", id, flush=True)
    found, failed = store.get_many(known)
    assert not failed, failed
    wrong = [n for n in known if found.get(n) != known[n]]
    assert not wrong, wrong
    assert {record.key.id: record.data for record in store.scan()} == known
    group = {record.key.id: record.data for record in store.scan("0")}
    end = time.monotonic() + 60
    while watched != group:
        assert time.monotonic() < end, f"watched {len(watched)} records of {len(group)}"
        time.sleep(0.01)
    print("all", len(known), "watched", len(watched), flush=True)

def answers():
    """Makes the calls that a script answers, and prints what came of them."""
    def told(what, id, failure):
        print(f"{what} {id}: {failure.reason}{', maybe done' if failure.maybe_done else ''}", flush=True)
    for id in (1, 2, 3, 4, 5, 8, 9):
        try:
            store.put(pb.RecordKey(id=id), b"hello")
            print(f"put {id}: stored", flush=True)
        except Failure as failure:
            told("put", id, failure)
    for id in (6, 7):
        try:
            print(f"get {id}: {store.get(pb.RecordKey(id=id)).decode()}", flush=True)
        except ValueError:
            print(f"get {id}: harmed", flush=True)
    for ids in ((10, 11, 12), (13,)):
        for id, failure in store.put_many({id: b"hello" for id in ids}).items():
            told("batch", id, failure)
    for id in (record.key.id for answer in store.watch("g") for record in answer.records):
        print("watched", id, flush=True)
        if id == 21:
            break
    for record in store.scan("g"):
        print("scanned", record.key.id, flush=True)

answers() if sys.argv[2:] else live()
