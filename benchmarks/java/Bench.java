import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
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
    static final int PULL_BATCH = 32;  // the default of the Python client and of Java's push; of its lite pull 10

    private final Map<String, String> options = new HashMap<>();
    final Measure.Recorder recorder = new Measure.Recorder();

    public static void main(String[] arguments) throws Exception {
        Bench bench = new Bench(arguments);
        switch (arguments[0]) {
            case "send": bench.send(bench.body()); break;
            case "send-text": bench.send(new Kinds(bench).text()); break;
            case "send-ordered":
            case "send-ordered-together": new Kinds(bench).ordered(); break;
            case "request": new Kinds(bench).requests(); break;
            case "transaction": new Kinds(bench).transactions(); break;
            case "drain": bench.drain(); break;
            case "push": new Push(bench).drain(Push::look); break;
            case "push-read": new Push(bench).drain(Push::read); break;
            case "push-lists": new Push(bench).drain(Push::look); break;
            case "latency": new Push(bench).sendToHandler(); break;
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

    String text(String name) {
        return options.get(name);
    }

    int number(String name, int otherwise) {
        return Integer.parseInt(options.getOrDefault(name, String.valueOf(otherwise)));
    }

    double seconds(String name) {
        return Double.parseDouble(options.getOrDefault(name, "1"));
    }

    static void sleep(double seconds) throws InterruptedException {
        Thread.sleep((long) (seconds * 1000));
    }

    byte[] body() {
        Random random = new Random(1);
        byte[] body = new byte[number("body_bytes", 1024)];
        for (int place = 0; place < body.length; place++) {
            body[place] = (byte) ('a' + random.nextInt(16));
        }
        return body;
    }

    DefaultMQProducer startProducer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-java-" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(text("namesrv"));
        producer.start();
        return producer;
    }

    // ---- sending

    /** One thread sending synchronously, permits around asynchronous sends, or threads sending batches. */
    private void send(byte[] body) throws Exception {
        DefaultMQProducer producer = startProducer();
        int inFlight = number("in_flight", 1);
        int batch = number("batch", 1);
        List<Thread> senders = new ArrayList<>();
        if (batch > 1) {
            for (int sender = 0; sender < inFlight; sender++) {
                senders.add(start(() -> sendBatches(producer, body, batch)));
            }
        } else if (inFlight > 1) {
            senders.add(start(() -> sendAsynchronously(producer, body, inFlight)));
        } else {
            senders.add(start(() -> sendOneByOne(producer, body)));
        }
        tellWindow(senders);
    }

    /** Measures what {@code senders} do, lets them end, and prints the result. */
    void tellWindow(List<Thread> senders) throws Exception {
        String window = measure();
        recorder.running = false;
        for (Thread sender : senders) {
            sender.join();
        }
        Measure.say("RESULT {" + window + ",\"acknowledged\":" + recorder.acknowledged.get() + ",\"errors\":" + recorder.errors.get()
            + recorder.percentiles() + "}");
    }

    interface Work {
        void run() throws Exception;
    }

    Thread start(Work work) {
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
        Measure.Window window = new Measure.Window();
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

    private void sendOneByOne(DefaultMQProducer producer, byte[] body) {
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

    private void sendBatches(DefaultMQProducer producer, byte[] body, int size) {
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

    private void sendAsynchronously(DefaultMQProducer producer, byte[] body, int inFlight) throws Exception {
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
        Measure.Offsets offsets;
        long started = System.nanoTime();
        do {
            offsets = new Measure.Offsets();
            passOver(total, offsets, new Measure.Progress(total, null));
        } while (System.nanoTime() - started < seconds("warmup_seconds") * 1e9);
        Measure.Window window = new Measure.Window();
        Measure.Progress progress = new Measure.Progress(total, window);
        passOver(total, null, progress);
        Measure.say("RESULT {\"messages\":" + progress.measured + window.figures + ",\"lost\":" + (total - offsets.unique)
            + ",\"duplicated\":" + offsets.repeated + "}");
    }

    private void passOver(int total, Measure.Offsets offsets, Measure.Progress progress) throws Exception {
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

    private void idle() throws Exception {
        startConsumer();
        sleep(seconds("warmup_seconds"));
        Measure.Window window = new Measure.Window();
        window.open();
        sleep(seconds("seconds"));
        window.close();
        Measure.say("RESULT {\"messages\":0" + window.figures + "}");
    }

    // ---- cold start

    private void sendFirst() throws Exception {
        startProducer().send(new Message(text("topic"), "TagA", body()));
        Measure.say("FIRST");
    }

    private void receiveFirst() throws Exception {
        DefaultLitePullConsumer consumer = startConsumer();
        while (consumer.poll(100).isEmpty()) {
            Thread.onSpinWait();
        }
        Measure.say("FIRST");
    }
}
