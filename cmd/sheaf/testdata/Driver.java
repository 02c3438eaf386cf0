import com.google.protobuf.ByteString;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import sheaf.record.v1.RecordOuterClass.WriteCondition;

/** Drives the client of examples/java; clients_test.go and clients_answers_test.go say how. */
public final class Driver {
    private static SheafClient store;

    public static void main(String[] args) throws Exception {
        store = new SheafClient(args[0]);
        if (args.length > 1) {
            answers();
        } else {
            live();
        }
        System.exit(0); // the watch has not ended
    }

    private static void must(boolean right, String what) {
        if (!right) {
            System.err.println(what);
            System.exit(1);
        }
    }

    private static ByteString bytes(String text) {
        return ByteString.copyFromUtf8(text);
    }

    private static Map<Long, ByteString> scan(String group) {
        Map<Long, ByteString> all = new HashMap<>();
        store.scan(group, record -> {
            all.put(record.getKey().getId(), record.getData());
            return true;
        });
        return all;
    }

    /** Writes until standard input says "stop", a round a line, then reads everything back, by id, by scan and by what a watch told. */
    private static void live() throws Exception {
        AtomicBoolean stop = new AtomicBoolean();
        Map<Long, ByteString> known = new HashMap<>(), watched = new ConcurrentHashMap<>(), found = new HashMap<>();
        CountDownLatch first = new CountDownLatch(1);
        new Thread(() -> {
            try {
                store.watch("0", ByteString.EMPTY, answer -> {
                    answer.getRecordsList().forEach(record -> watched.put(record.getKey().getId(), record.getData()));
                    first.countDown();
                    return true;
                });
            } catch (RuntimeException err) {
                must(false, "the watch failed: " + err);
            }
        }).start();
        must(first.await(60, TimeUnit.SECONDS), "no first message of the watch");
        Thread input = new Thread(() -> {
            try {
                stop.set(System.in.read() != 0);
            } catch (java.io.IOException err) {
                must(false, err.toString());
            }
        });
        input.setDaemon(true);
        input.start();
        long id = 0;
        while (!stop.get()) {
            Map<Long, ByteString> batch = new LinkedHashMap<>();
            for (int n = 0; n < 50; n++, id++) {
                batch.put(id, bytes(("batch " + id).repeat(20)));
            }
            Map<Long, SheafClient.Failure> failed = store.putMany(batch);
            must(failed.isEmpty(), "puts failed: " + failed);
            known.putAll(batch);
            String version = store.put(SheafClient.key(id), bytes("one"), put -> put.setCondition(WriteCondition.newBuilder().setIfAbsent(true)));
            must(store.get(SheafClient.key(id)).equals(bytes("one")), "record " + id + " is not one");
            known.put(id, bytes("one"));
            if (id % 3 == 0) { // and again, as another version
                store.put(SheafClient.key(id), bytes("two"), put -> put.setCondition(WriteCondition.newBuilder().setIfVersion(version)));
                known.put(id, bytes("two"));
            }
            id++;
            System.out.println("round " + id);
        }
        Map<Long, SheafClient.Failure> failed = store.getMany(known.keySet(), found);
        must(failed.isEmpty(), "reads failed: " + failed);
        must(found.equals(known), "read by id: not what was written");
        must(scan("").equals(known), "read by scan: not what was written");
        Map<Long, ByteString> group = scan("0");
        for (long end = System.nanoTime() + 60_000_000_000L; !watched.equals(group); Thread.sleep(10)) {
            must(System.nanoTime() < end, "watched " + watched.size() + " records of " + group.size());
        }
        System.out.println("all " + known.size() + " watched " + watched.size());
    }

    private static void told(String what, long id, SheafClient.Failure failure) {
        System.out.println(what + " " + id + ": " + failure.reason + (failure.maybeDone ? ", maybe done" : ""));
    }

    /** Makes the calls that a script answers, and prints what came of them. */
    private static void answers() {
        for (long id : new long[] {1, 2, 3, 4, 5, 8, 9}) {
            try {
                store.put(SheafClient.key(id), bytes("hello"), put -> {});
                System.out.println("put " + id + ": stored");
            } catch (SheafClient.Failure failure) {
                told("put", id, failure);
            }
        }
        for (long id = 6; id < 8; id++) {
            try {
                System.out.println("get " + id + ": " + store.get(SheafClient.key(id)).toStringUtf8());
            } catch (IllegalStateException err) {
                System.out.println("get " + id + ": harmed");
            }
        }
        for (List<Long> ids : List.of(List.of(10L, 11L, 12L), List.of(13L))) {
            Map<Long, ByteString> records = new LinkedHashMap<>();
            ids.forEach(id -> records.put(id, bytes("hello")));
            store.putMany(records).forEach((id, failure) -> told("batch", id, failure));
        }
        List<Long> watched = new ArrayList<>();
        store.watch("g", ByteString.EMPTY, answer -> {
            answer.getRecordsList().forEach(record -> watched.add(record.getKey().getId()));
            return !watched.contains(21L);
        });
        watched.forEach(id -> System.out.println("watched " + id));
        store.scan("g", record -> {
            System.out.println("scanned " + record.getKey().getId());
            return true;
        });
    }
}
