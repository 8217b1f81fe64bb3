import java.nio.ByteBuffer;
import java.util.BitSet;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The push consumer: whole backlogs through its listener, and the time from a send to the listener. */
final class Push {
    private static final int TUNED_LIST = 32;  // what Java is fastest with at large pulls and one message a call
    private static final double ARRIVAL_SECONDS = 10;  // for what is under way when the window closes
    private static final int STAMP_BYTES = 32;

    private final Bench bench;

    Push(Bench bench) {
        this.bench = bench;
    }

    /** What a listener does with a message; returns something that depends on what it has read. */
    interface Look {
        int at(MessageExt message);
    }

    static int look(MessageExt message) {
        return message.getBody().length;
    }

    static int read(MessageExt message) {
        return message.getTags() == null ? 0 : message.getProperties().size() + message.getBody().length;
    }

    private DefaultMQPushConsumer start(MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-java-push-" + System.nanoTime());
        consumer.setNamesrvAddr(bench.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        int pull = bench.number("pull_batch", Bench.PULL_BATCH);
        if (pull != Bench.PULL_BATCH) {
            consumer.setPullBatchSize(pull);
            consumer.setConsumeMessageBatchMaxSize(Math.max(TUNED_LIST, bench.number("handler_batch", 1)));
            consumer.setPullThresholdForQueue(4 * pull);
            consumer.setConsumeConcurrentlyMaxSpan(40 * pull);
        }
        consumer.subscribe(bench.text("topic"), "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    // ---- a backlog

    /** One pass that is checked, others until warm, then the measured one; each is a new group. */
    void drain(Look look) throws Exception {
        int total = bench.number("total", 0);
        Measure.Offsets offsets = new Measure.Offsets();
        long started = System.nanoTime();
        passOver(total, look, offsets, new Measure.Progress(total, null));
        while (System.nanoTime() - started < bench.seconds("warmup_seconds") * 1e9) {
            passOver(total, look, null, new Measure.Progress(total, null));
        }
        Measure.Window window = new Measure.Window();
        Measure.Progress progress = new Measure.Progress(total, window);
        passOver(total, look, null, progress);
        Measure.say("RESULT {\"messages\":" + progress.measured + window.figures + ",\"lost\":" + (total - offsets.unique)
            + ",\"duplicated\":" + offsets.repeated + "}");
    }

    private void passOver(int total, Look look, Measure.Offsets offsets, Measure.Progress progress) throws Exception {
        LongAdder count = new LongAdder();
        LongAdder held = new LongAdder();
        DefaultMQPushConsumer consumer = start((messages, context) -> {
            for (MessageExt message : messages) {
                held.add(look.at(message));
            }
            if (offsets != null) {
                offsets.add(messages);
            }
            count.add(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        while (offsets == null ? count.sum() < total : offsets.unique() < total) {
            progress.reach((int) count.sum());
            Thread.sleep(1);
        }
        progress.reach(total);
        consumer.shutdown();
        if (held.sum() == 0) {
            throw new IllegalStateException("nothing was read");
        }
    }

    // ---- latency

    /** What came of one run, each message once. */
    private static final class Arrivals {
        private final BitSet numbers = new BitSet();
        private int repeated;

        synchronized void add(int number) {
            if (numbers.get(number)) {
                repeated++;
            }
            numbers.set(number);
        }

        synchronized int unique() {
            return numbers.cardinality();
        }

        synchronized int repeated() {
            return repeated;
        }
    }

    /** Sends at a fixed rate through a window; one clock for both ends. */
    void sendToHandler() throws Exception {
        long run = System.nanoTime();
        Measure.Recorder fromSent = new Measure.Recorder();
        Measure.Recorder fromIntended = new Measure.Recorder();
        Arrivals arrivals = new Arrivals();
        start((messages, context) -> {
            for (MessageExt message : messages) {
                ByteBuffer stamp = ByteBuffer.wrap(message.getBody());
                if (stamp.getLong() == run) {
                    int number = (int) stamp.getLong();
                    fromIntended.succeed(stamp.getLong(), 1);
                    fromSent.succeed(stamp.getLong(), 1);
                    arrivals.add(number);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = bench.startProducer();
        Thread sender = bench.start(() -> sendSteadily(producer, run));
        Bench.sleep(bench.seconds("warmup_seconds"));
        Measure.Window window = new Measure.Window();
        window.open();
        fromSent.measuring = fromIntended.measuring = true;
        Bench.sleep(bench.seconds("seconds"));
        fromSent.measuring = fromIntended.measuring = false;
        window.close();
        bench.recorder.running = false;
        sender.join();
        int arrived = waitFor(arrivals);
        AtomicLong acknowledged = bench.recorder.acknowledged;
        Measure.say("RESULT {\"messages\":" + fromSent.samples.get() + window.figures + ",\"acknowledged\":" + acknowledged.get()
            + ",\"errors\":" + bench.recorder.errors.get() + ",\"lost\":" + Math.max(0, acknowledged.get() - arrived)
            + ",\"duplicated\":" + arrivals.repeated() + fromSent.percentiles() + fromIntended.percentiles("intended_") + "}");
    }

    private int waitFor(Arrivals arrivals) throws InterruptedException {
        long deadline = System.nanoTime() + (long) (ARRIVAL_SECONDS * 1e9);
        Bench.sleep(1);  // the last acknowledgements are under way
        while (arrivals.unique() < bench.recorder.acknowledged.get() && System.nanoTime() < deadline) {
            Bench.sleep(0.01);
        }
        return arrivals.unique();
    }

    private void sendSteadily(DefaultMQProducer producer, long run) throws Exception {
        int rate = bench.number("rate", 1000);
        int padding = Math.max(0, bench.number("body_bytes", 1024) - STAMP_BYTES);
        long began = System.nanoTime();
        for (long number = 0; bench.recorder.running; number++) {
            long intended = began + number * 1_000_000_000L / rate;
            long early;
            while ((early = intended - System.nanoTime()) > 0) {
                LockSupport.parkNanos(early);
            }
            sendStamped(producer, ByteBuffer.allocate(STAMP_BYTES + padding).putLong(run).putLong(number).putLong(intended));
        }
    }

    private void sendStamped(DefaultMQProducer producer, ByteBuffer stamp) throws Exception {
        long sent = System.nanoTime();
        producer.send(new Message(bench.text("topic"), "TagA", stamp.putLong(sent).array()), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                bench.recorder.succeed(sent, 1);
            }

            @Override
            public void onException(Throwable error) {
                bench.recorder.fail(error);
            }
        });
    }
}
