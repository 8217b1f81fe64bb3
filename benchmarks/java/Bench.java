import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official client under the workloads of the Python subjects: {@code Bench WORKLOAD key=value...}.
 *
 * <p>Prints START and STOP around the measured window, then RESULT with JSON; FIRST after the first
 * message of a cold start.
 */
public final class Bench {
    private static final int MAX_SAMPLES = 1 << 21;
    private static final int PULL_BATCH = 32;  // the Java default is 10, the Python client's is 32
    private static final int REPORTED_ERRORS = 3;

    private final Map<String, String> options = new HashMap<>();
    private final Recorder recorder = new Recorder();

    public static void main(String[] arguments) throws Exception {
        Bench bench = new Bench(arguments);
        switch (arguments[0]) {
            case "send": bench.send(); break;
            case "drain": bench.drain(); break;
            case "idle": bench.idle(); break;
            case "first-send": bench.sendFirst(); break;
            case "first-receive": bench.receiveFirst(); break;
            default: throw new IllegalArgumentException(arguments[0]);
        }
        Runtime.getRuntime().halt(0);
    }

    private Bench(String[] arguments) {
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            options.put(pair[0], pair.length > 1 ? pair[1] : "");
        }
    }

    private String text(String name) {
        return options.get(name);
    }

    private int number(String name, int otherwise) {
        return Integer.parseInt(options.getOrDefault(name, String.valueOf(otherwise)));
    }

    private double seconds(String name) {
        return Double.parseDouble(options.getOrDefault(name, "1"));
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static void sleep(double seconds) throws InterruptedException {
        Thread.sleep((long) (seconds * 1000));
    }

    private byte[] body() {
        Random random = new Random(1);
        byte[] body = new byte[number("body_bytes", 1024)];
        for (int place = 0; place < body.length; place++) {
            body[place] = (byte) ('a' + random.nextInt(16));
        }
        return body;
    }

    /** Latencies inside the window; everything acknowledged and failed over the whole run. */
    private static final class Recorder {
        final long[] latencies = new long[MAX_SAMPLES];
        final AtomicInteger samples = new AtomicInteger();
        final AtomicLong acknowledged = new AtomicLong();
        final AtomicLong errors = new AtomicLong();
        volatile boolean measuring;
        volatile boolean running = true;

        void succeed(long started, int messages) {
            acknowledged.addAndGet(messages);
            if (!measuring) {
                return;
            }
            int place = samples.getAndIncrement();
            if (place < latencies.length) {
                latencies[place] = System.nanoTime() - started;
            }
        }

        void fail(Throwable error) {
            if (errors.incrementAndGet() <= REPORTED_ERRORS) {
                System.err.println(error);
            }
        }

        String percentiles() {
            int count = Math.min(samples.get(), latencies.length);
            if (count == 0) {
                return "";
            }
            Arrays.sort(latencies, 0, count);
            return String.format(Locale.ROOT, ",\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f",
                at(0.5, count), at(0.99, count), at(0.999, count), latencies[count - 1] / 1e3);
        }

        private double at(double rank, int count) {
            return latencies[Math.min(count - 1, (int) (rank * count))] / 1e3;
        }
    }

    private DefaultMQProducer startProducer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-java-" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(text("namesrv"));
        producer.start();
        return producer;
    }

    // ---- sending

    /** One thread sending synchronously, permits around asynchronous sends, or threads sending batches. */
    private void send() throws Exception {
        DefaultMQProducer producer = startProducer();
        int inFlight = number("in_flight", 1);
        int batch = number("batch", 1);
        List<Thread> senders = new ArrayList<>();
        if (batch > 1) {
            for (int sender = 0; sender < inFlight; sender++) {
                senders.add(start(() -> sendBatches(producer, batch)));
            }
        } else if (inFlight > 1) {
            senders.add(start(() -> sendAsynchronously(producer, inFlight)));
        } else {
            senders.add(start(() -> sendOneByOne(producer)));
        }
        String window = measure();
        recorder.running = false;
        for (Thread sender : senders) {
            sender.join();
        }
        say("RESULT {" + window + ",\"acknowledged\":" + recorder.acknowledged.get() + ",\"errors\":" + recorder.errors.get()
            + recorder.percentiles() + "}");
    }

    private interface Work {
        void run() throws Exception;
    }

    private Thread start(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception error) {
                recorder.fail(error);
            }
        });
        thread.start();
        return thread;
    }

    private String measure() throws Exception {
        Window window = new Window();
        sleep(seconds("warmup_seconds"));
        recorder.measuring = true;
        window.open();
        long before = recorder.acknowledged.get();
        sleep(seconds("seconds"));
        long messages = recorder.acknowledged.get() - before;
        recorder.measuring = false;
        window.close();
        return "\"messages\":" + messages + window.figures;
    }

    /** The measured time; what it took of this process, read from the kernel at both its ends. */
    private static final class Window {
        private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        private long started;
        private long cpu;
        String figures = "";

        void open() {
            say("START");
            started = System.nanoTime();
            cpu = SYSTEM.getProcessCpuTime();
        }

        void close() throws IOException {
            double spent = (SYSTEM.getProcessCpuTime() - cpu) / 1e9;
            double elapsed = (System.nanoTime() - started) / 1e9;
            figures = ",\"seconds\":" + elapsed + ",\"cpu_seconds\":" + spent
                + ",\"rss_mib\":" + memory("VmHWM") + ",\"rss_now_mib\":" + memory("VmRSS");
            say("STOP");
        }

        private static double memory(String name) throws IOException {
            for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
                if (line.startsWith(name + ":")) {
                    return Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024.0;
                }
            }
            return 0;
        }
    }

    private void sendOneByOne(DefaultMQProducer producer) {
        byte[] body = body();
        while (recorder.running) {
            long started = System.nanoTime();
            try {
                producer.send(new Message(text("topic"), "TagA", body));
                recorder.succeed(started, 1);
            } catch (Exception error) {
                recorder.fail(error);
            }
        }
    }

    private void sendBatches(DefaultMQProducer producer, int size) {
        byte[] body = body();
        String topic = text("topic");
        while (recorder.running) {
            long started = System.nanoTime();
            List<Message> messages = new ArrayList<>(size);
            for (int place = 0; place < size; place++) {
                messages.add(new Message(topic, "TagA", body));
            }
            try {
                producer.send(messages);
                recorder.succeed(started, size);
            } catch (Exception error) {
                recorder.fail(error);
            }
        }
    }

    private void sendAsynchronously(DefaultMQProducer producer, int inFlight) throws Exception {
        byte[] body = body();
        String topic = text("topic");
        Semaphore permits = new Semaphore(inFlight);
        while (recorder.running) {
            permits.acquire();
            long started = System.nanoTime();
            producer.send(new Message(topic, "TagA", body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    recorder.succeed(started, 1);
                    permits.release();
                }

                @Override
                public void onException(Throwable error) {
                    recorder.fail(error);
                    permits.release();
                }
            });
        }
        permits.acquire(inFlight);
    }

    // ---- consuming

    private DefaultLitePullConsumer startConsumer() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("bench-java-" + System.nanoTime());
        consumer.setNamesrvAddr(text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(PULL_BATCH);
        consumer.subscribe(text("topic"), "*");
        consumer.start();
        return consumer;
    }

    /** Whole passes over the backlog, each as a new group, until warm; then the measured one. */
    private void drain() throws Exception {
        int total = number("total", 0);
        Offsets offsets;
        long started = System.nanoTime();
        do {
            offsets = new Offsets();
            passOver(total, offsets, new Progress(total, null));
        } while (System.nanoTime() - started < seconds("warmup_seconds") * 1e9);
        Window window = new Window();
        Progress progress = new Progress(total, window);
        passOver(total, null, progress);
        say("RESULT {\"messages\":" + progress.measured + window.figures + ",\"lost\":" + (total - offsets.unique)
            + ",\"duplicated\":" + offsets.repeated + "}");
    }

    private void passOver(int total, Offsets offsets, Progress progress) throws Exception {
        DefaultLitePullConsumer consumer = startConsumer();
        long bytes = 0;
        int count = 0;
        while (count < total) {
            List<MessageExt> messages = consumer.poll(1000);
            for (MessageExt message : messages) {
                bytes += message.getBody().length;
            }
            if (offsets != null) {
                offsets.add(messages);
            }
            count += messages.size();
            progress.reach(count);
        }
        consumer.shutdown();
        if (bytes == 0) {
            throw new IllegalStateException("empty bodies");
        }
    }

    /** Which offsets came, and how many came again. */
    private static final class Offsets {
        private final Map<Integer, BitSet> queues = new HashMap<>();
        int unique;
        int repeated;

        void add(List<MessageExt> messages) {
            for (MessageExt message : messages) {
                BitSet seen = queues.computeIfAbsent(message.getQueueId(), queue -> new BitSet());
                int offset = (int) message.getQueueOffset();
                if (seen.get(offset)) {
                    repeated++;
                } else {
                    seen.set(offset);
                    unique++;
                }
            }
        }
    }

    /** Opens and closes a window, if there is one, around the middle nine tenths of a backlog. */
    private static final class Progress {
        private final int low;
        private final int high;
        private final Window window;
        private int counted = -1;
        int measured;

        Progress(int total, Window window) {
            low = total / 20;
            high = total - total / 20;
            this.window = window;
        }

        void reach(int count) throws IOException {
            if (window == null) {
                return;
            }
            if (counted < 0 && count >= low) {
                counted = count;
                window.open();
            } else if (measured == 0 && counted >= 0 && count >= high) {
                measured = count - counted;
                window.close();
            }
        }
    }

    private void idle() throws Exception {
        startConsumer();
        sleep(seconds("warmup_seconds"));
        Window window = new Window();
        window.open();
        sleep(seconds("seconds"));
        window.close();
        say("RESULT {\"messages\":0" + window.figures + "}");
    }

    // ---- cold start

    private void sendFirst() throws Exception {
        startProducer().send(new Message(text("topic"), "TagA", body()));
        say("FIRST");
    }

    private void receiveFirst() throws Exception {
        DefaultLitePullConsumer consumer = startConsumer();
        while (consumer.poll(100).isEmpty()) {
            Thread.onSpinWait();
        }
        say("FIRST");
    }
}
