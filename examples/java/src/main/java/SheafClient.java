import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.MessageLite;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.security.SecureRandom;
import java.util.*;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.zip.CRC32C;
import sheaf.record.v1.RecordOuterClass.*;
import sheaf.record.v1.RecordOuterClass.Record;
import sheaf.record.v1.RecordServiceGrpc;
import sheaf.record.v1.RecordServiceGrpc.RecordServiceBlockingStub;

/**
 * A client of Sheaf that retries calls and checks data. Any number of threads may use one SheafClient. main shows its
 * calls against a store on 127.0.0.1:7600. The client needs Java 17 and the dependencies of pom.xml.
 */
public final class SheafClient implements AutoCloseable {
    /** A call is retried after these reasons, and after every UNAVAILABLE. */
    private static final Set<String> AGAIN = Set.of("OVERLOADED", "WRONG_SHARD", "NOT_LEADER", "OUTCOME_UNKNOWN");
    /** A group sends these reasons after it has looked for the request id, so they show if the write was applied. */
    private static final Set<String> KNOWN = Set.of("VERSION_MISMATCH", "RECORD_EXISTS", "REQUEST_ID_REUSED");
    private static final SecureRandom RANDOM = new SecureRandom();

    /** A call that failed. */
    public static final class Failure extends RuntimeException {
        public final Code code;
        public final String reason;
        /** True if the call is a write that the store may have applied. */
        public boolean maybeDone;
        final boolean again;
        final long wait; // in milliseconds

        Failure(com.google.rpc.Status status) {
            super(status.getMessage());
            String reason = "";
            long wait = 0;
            try {
                for (Any detail : status.getDetailsList()) {
                    if (detail.is(ErrorInfo.class) && detail.unpack(ErrorInfo.class).getDomain().equals("sheaf.dev")) {
                        reason = detail.unpack(ErrorInfo.class).getReason();
                    } else if (detail.is(RetryInfo.class)) {
                        com.google.protobuf.Duration delay = detail.unpack(RetryInfo.class).getRetryDelay();
                        wait = delay.getSeconds() * 1000 + (delay.getNanos() + 999_999) / 1_000_000;
                    }
                }
            } catch (InvalidProtocolBufferException err) {
                throw new IllegalStateException(err);
            }
            this.code = io.grpc.Status.fromCodeValue(status.getCode()).getCode();
            this.reason = reason;
            this.wait = wait;
            // The connection failed without an answer. In grpc-java the code may be UNKNOWN ("channel closed").
            boolean lost = (code == Code.UNAVAILABLE || code == Code.UNKNOWN) && reason.isEmpty();
            maybeDone = lost || code == Code.DEADLINE_EXCEEDED || reason.equals("OUTCOME_UNKNOWN");
            // An answer about a rate quota has RetryInfo. An answer about a storage quota has none, and a retry is
            // useless.
            boolean rate = reason.equals("QUOTA_EXCEEDED") && wait > 0;
            again = lost || code == Code.UNAVAILABLE || code == Code.DEADLINE_EXCEEDED
                || AGAIN.contains(reason) || rate;
        }

        static Failure of(Throwable err) {
            return new Failure(StatusProto.fromThrowable(err));
        }

        @Override public String toString() {
            return code + " " + reason + ": " + getMessage();
        }
    }

    private final ManagedChannel channel;
    private final RecordServiceBlockingStub stub;
    private final long millis, attempt;

    public SheafClient(String address) {
        this(address, 60_000, 5_000);
    }

    /**
     * millis limits a call with all its attempts. It must be below 120,000, because a group may forget a request id
     * after that time. attempt limits one attempt, in milliseconds.
     */
    public SheafClient(String address, long millis, long attempt) {
        channel = NettyChannelBuilder.forTarget(address).usePlaintext()
            .maxInboundMessageSize(16 << 20).keepAliveTime(20, TimeUnit.SECONDS).build();
        stub = RecordServiceGrpc.newBlockingStub(channel);
        this.millis = millis;
        this.attempt = attempt;
    }

    @Override public void close() {
        channel.shutdownNow();
    }

    private interface Attempt<K> {
        Map<K, Failure> make(List<K> pending, long timeoutMillis);
    }

    /**
     * Calls once, which returns a Failure for each failed item. Repeats the call for the items for which a retry may
     * help, until the time is up. Returns the Failures of the items that failed in the end.
     */
    private <K> Map<K, Failure> repeat(Collection<K> all, Attempt<K> once) {
        long end = now() + millis, pause = 10;
        Map<K, Failure> failed = new LinkedHashMap<>();
        Set<K> doubt = new HashSet<>();
        List<K> pending = List.copyOf(all);
        while (true) {
            List<K> again = new ArrayList<>();
            long wait = 0;
            long timeout = Math.min(attempt, Math.max(end - now(), 50));
            for (Map.Entry<K, Failure> entry : once.make(pending, timeout).entrySet()) {
                Failure failure = entry.getValue();
                if (failure.maybeDone) {
                    doubt.add(entry.getKey());
                }
                // Only the reasons in KNOWN show whether an earlier attempt was applied.
                failure.maybeDone = doubt.contains(entry.getKey()) && !KNOWN.contains(failure.reason);
                failed.put(entry.getKey(), failure);
                if (failure.again) {
                    again.add(entry.getKey());
                    wait = Math.max(wait, failure.wait);
                }
            }
            pause = pauseAfter(pause, wait);
            if (again.isEmpty() || now() + pause > end) {
                return failed;
            }
            again.forEach(failed::remove);
            pending = again;
            sleep(pause);
        }
    }

    private <T> T one(Function<RecordServiceBlockingStub, T> call) {
        List<T> answer = new ArrayList<>();
        for (Failure failure : repeat(List.of(0), (pending, timeout) -> {
            try {
                answer.add(call.apply(stub.withDeadlineAfter(timeout, TimeUnit.MILLISECONDS)));
                return Map.of();
            } catch (StatusRuntimeException err) {
                return Map.of(0, Failure.of(err));
            }
        }).values()) {
            throw failure;
        }
        return answer.get(0);
    }

    /** Stores at most 1 MiB of data, and returns the version. fields sets attributes, a condition, or a timestamp. */
    public String put(RecordKey key, ByteString data, Consumer<PutRequest.Builder> fields) {
        PutRequest.Builder request = putRequest(key, data);
        fields.accept(request);
        PutRequest built = request.build();
        return one(s -> s.put(built)).getVersion();
    }

    public ByteString get(RecordKey key) {
        return checked(one(s -> s.get(GetRequest.newBuilder().setKey(key).build())).getRecord()).getData();
    }

    public boolean delete(RecordKey key) {
        DeleteRequest request = DeleteRequest.newBuilder().setKey(key).setRequestId(requestId()).build();
        return one(s -> s.delete(request)).getExisted();
    }

    /** Stores data by id, and returns the failures by id. All attempts of a put have the same request id. */
    public Map<Long, Failure> putMany(Map<Long, ByteString> records) {
        Map<Long, PutRequest> puts = new LinkedHashMap<>();
        records.forEach((id, data) -> puts.put(id, putRequest(key(id), data).build()));
        return repeat(puts.keySet(), (pending, timeout) -> {
            Map<Long, Failure> failed = new LinkedHashMap<>();
            Iterator<Long> left = pending.iterator();
            CompletableFuture<Throwable> ended = new CompletableFuture<>();
            StreamObserver<BatchPutRequest> call = RecordServiceGrpc.newStub(channel)
                .withDeadlineAfter(timeout, TimeUnit.MILLISECONDS)
                .batchPut(new StreamObserver<>() {
                    @Override public void onNext(BatchPutResponse answer) {
                        for (BatchPutResult result : answer.getResultsList()) { // in the order of the puts
                            Long id = left.next();
                            if (result.getStatus().getCode() != 0) {
                                failed.put(id, new Failure(result.getStatus()));
                            }
                        }
                    }

                    @Override public void onError(Throwable err) {
                        ended.complete(err);
                    }

                    @Override public void onCompleted() {
                        io.grpc.Status status = io.grpc.Status.UNAVAILABLE.withDescription("no answer came");
                        ended.complete(status.asRuntimeException());
                    }
                });
            for (List<PutRequest> part : split(pending.stream().map(puts::get).toList(), 1024, 2 << 20)) {
                call.onNext(BatchPutRequest.newBuilder().addAllPuts(part).build());
            }
            call.onCompleted();
            Throwable err = ended.join();
            left.forEachRemaining(id -> { // unanswered puts may have been applied
                Failure failure = Failure.of(err);
                failure.maybeDone |= failure.again;
                failed.put(id, failure);
            });
            return failed;
        });
    }

    /** Reads records into found, and returns the failures by id. */
    public Map<Long, Failure> getMany(Collection<Long> ids, Map<Long, ByteString> found) {
        return repeat(ids, (pending, timeout) -> {
            Map<Long, Failure> failed = new LinkedHashMap<>();
            Set<Long> left = new LinkedHashSet<>(pending);
            RecordServiceBlockingStub timed = stub.withDeadlineAfter(timeout, TimeUnit.MILLISECONDS);
            List<GetRequest> gets = pending.stream()
                .map(id -> GetRequest.newBuilder().setKey(key(id)).build()).toList();
            try {
                for (List<GetRequest> part : split(gets, 4096, 2 << 20)) {
                    timed.batchGet(BatchGetRequest.newBuilder().addAllGets(part).build()).forEachRemaining(answer -> {
                        for (BatchGetResult result : answer.getResultsList()) { // in any order
                            long id = part.get(result.getPosition()).getKey().getId();
                            left.remove(id);
                            if (result.getStatus().getCode() != 0) {
                                failed.put(id, new Failure(result.getStatus()));
                            } else {
                                found.put(id, checked(result.getRecord()).getData());
                            }
                        }
                    });
                }
            } catch (StatusRuntimeException err) {
                left.forEach(id -> failed.put(id, Failure.of(err)));
            }
            return failed;
        });
    }

    /**
     * Passes the newest version of each record of a group to each, until each returns false. An empty group stands for
     * all groups. A record above 1 MiB has no data. Use Download for such records.
     */
    public void scan(String group, Predicate<Record> each) {
        ScanRequest all = ScanRequest.newBuilder().setGroup(group).build();
        follow(at -> stub.scan(at.isEmpty() ? all : ScanRequest.newBuilder().setCursor(at).build()),
            ByteString.EMPTY, ScanResponse::getCursor,
            answer -> answer.getRecordsList().stream().allMatch(record -> each.test(checked(record))));
    }

    /**
     * Passes messages with changed records to each, until each returns false. A message has the cursor after its
     * records. Store that cursor together with the results of processing them. An empty cursor stands for now.
     */
    public void watch(String group, ByteString cursor, Predicate<WatchResponse> each) {
        follow(at -> stub.watch(WatchRequest.newBuilder().setGroup(group).setCursor(at).build()),
            cursor, WatchResponse::getCursor,
            answer -> {
                answer.getRecordsList().forEach(SheafClient::checked);
                return each.test(answer);
            });
    }

    /** Passes the messages of a stream to each. A stream that breaks is started again at the last cursor. */
    private <T> void follow(
        Function<ByteString, Iterator<T>> begin, ByteString cursor, Function<T, ByteString> cursorOf, Predicate<T> each
    ) {
        long end = 0, pause = 10; // end is the time to give up, set after a failure until the next message
        while (true) {
            Context.CancellableContext context = Context.current().withCancellation();
            Context before = context.attach();
            try {
                for (Iterator<T> answers = begin.apply(cursor); answers.hasNext(); ) {
                    T answer = answers.next();
                    cursor = cursorOf.apply(answer);
                    end = 0;
                    pause = 10;
                    if (!each.test(answer)) {
                        return;
                    }
                }
                return;
            } catch (StatusRuntimeException err) {
                Failure failure = Failure.of(err);
                end = end == 0 ? now() + millis : end;
                pause = pauseAfter(pause, failure.wait);
                if (!failure.again || now() + pause > end) {
                    throw failure;
                }
            } finally {
                context.detach(before);
                context.cancel(null); // also if the caller stops early, because unread answers occupy memory
            }
            sleep(pause);
        }
    }

    public static RecordKey key(long id) {
        return RecordKey.newBuilder().setId(id).build();
    }

    private static PutRequest.Builder putRequest(RecordKey key, ByteString data) {
        return PutRequest.newBuilder().setKey(key).setData(data).setRequestId(requestId()).setDataCrc32C(crc32c(data));
    }

    private static ByteString requestId() {
        byte[] id = new byte[16];
        RANDOM.nextBytes(id);
        return ByteString.copyFrom(id);
    }

    private static int crc32c(ByteString data) {
        CRC32C sum = new CRC32C();
        sum.update(data.asReadOnlyByteBuffer());
        return (int) sum.getValue();
    }

    private static Record checked(Record record) {
        if (record.hasDataCrc32C() && crc32c(record.getData()) != record.getDataCrc32C()) {
            long id = record.getKey().getId();
            throw new IllegalStateException("record " + id + ": its bytes were changed on the way");
        }
        return record;
    }

    /**
     * Divides requests into messages of at most the given numbers of requests and bytes. A larger request has its own
     * message.
     */
    private static <T extends MessageLite> List<List<T>> split(List<T> requests, int most, int mostBytes) {
        List<List<T>> parts = new ArrayList<>();
        int size = 0;
        for (T request : requests) {
            int n = request.getSerializedSize() + 16;
            if (parts.isEmpty() || parts.get(parts.size() - 1).size() == most || size + n > mostBytes) {
                parts.add(new ArrayList<>());
                size = 0;
            }
            parts.get(parts.size() - 1).add(request);
            size += n;
        }
        return parts;
    }

    private static long now() {
        return System.nanoTime() / 1_000_000;
    }

    private static long pauseAfter(long pause, long wait) {
        return Math.max((long) (Math.min(2 * pause, 500) * ThreadLocalRandom.current().nextDouble(0.5, 1)), wait);
    }

    /** Waits, and then makes gRPC reconnect immediately. Otherwise gRPC would wait up to two minutes. */
    private void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException err) {
            throw new IllegalStateException(err);
        }
        channel.resetConnectBackoff();
    }

    public static void main(String[] args) {
        try (SheafClient store = new SheafClient("127.0.0.1:7600")) {
            System.out.println("version " + store.put(key(1), ByteString.copyFromUtf8("hello"), put -> {}));
            System.out.println(store.get(key(1)).toStringUtf8());
            Map<Long, ByteString> many = new HashMap<>(), found = new HashMap<>();
            for (long id = 2; id < 5000; id++) {
                many.put(id, ByteString.copyFromUtf8("many"));
            }
            System.out.println("failed " + store.putMany(many));
            store.getMany(many.keySet(), found);
            System.out.println(found.size() + " read");
        }
    }
}
