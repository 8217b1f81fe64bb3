import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends that are more than a message on its way: in order, compressed, transactions, requests with replies. */
final class Kinds {
    private static final String[] WORDS = ("order customer paid shipped returned street number invoice amount currency total item"
        + " discount warehouse parcel carrier tracking address city country").split(" ");
    private static final int REQUEST_MILLIS = 10_000;

    private final Bench bench;
    private final String topic;

    Kinds(Bench bench) {
        this.bench = bench;
        this.topic = bench.text("topic");
    }

    /** What one thread does again and again; fails with an exception. */
    interface Operation {
        void run() throws Exception;
    }

    /** Gives each thread an operation of its own. */
    interface Operations {
        Operation of(int thread);
    }

    /** A thread per key: only after an answer may the next message of that key leave. */
    void ordered() throws Exception {
        DefaultMQProducer producer = bench.startProducer();
        SelectMessageQueueByHash selector = new SelectMessageQueueByHash();
        byte[] body = bench.body();
        inThreads(thread -> () -> {
            String key = "key-" + thread;
            check(producer.send(new Message(topic, "TagA", body), selector, key).getSendStatus());
        });
    }

    /** Words, which shrink to about a fourth; compressed as the client does by default. */
    byte[] text() {
        StringBuilder text = new StringBuilder();
        long state = 1;
        int size = bench.number("body_bytes", 1024);
        while (text.length() < size) {
            state = (state * 1_103_515_245L + 12_345L) % (1L << 31);
            text.append(WORDS[(int) (state >> 16) % WORDS.length]).append(state % 1000).append(' ');
        }
        return text.substring(0, size).getBytes(StandardCharsets.US_ASCII);
    }

    void transactions() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("bench-java-tx-" + ProcessHandle.current().pid());
        producer.setNamesrvAddr(bench.text("namesrv"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        byte[] body = bench.body();
        inThreads(thread -> () -> check(producer.sendMessageInTransaction(new Message(topic, "TagA", body), null).getSendStatus()));
    }

    /** Requester and replier in this process, the replier with its default of 20 threads. */
    void requests() throws Exception {
        DefaultMQProducer producer = bench.startProducer();
        DefaultMQPushConsumer replier = new DefaultMQPushConsumer("bench-java-reply-" + System.nanoTime());
        replier.setNamesrvAddr(bench.text("namesrv"));
        replier.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        replier.subscribe(topic, "*");
        replier.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                reply(producer, message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        replier.start();
        byte[] body = bench.body();
        inThreads(thread -> () -> producer.request(new Message(topic, "TagA", body), REQUEST_MILLIS));
    }

    private void reply(DefaultMQProducer producer, MessageExt message) {
        try {
            producer.send(MessageUtil.createReplyMessage(message, message.getBody()));
        } catch (Exception error) {
            bench.recorder.fail(error);
        }
    }

    private static void check(SendStatus status) {
        if (status != SendStatus.SEND_OK) {
            throw new IllegalStateException(String.valueOf(status));
        }
    }

    private void inThreads(Operations operations) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < bench.number("in_flight", 1); number++) {
            Operation operation = operations.of(number);
            threads.add(bench.start(() -> repeat(operation)));
        }
        bench.tellWindow(threads);
    }

    private void repeat(Operation operation) {
        while (bench.recorder.running) {
            long started = System.nanoTime();
            try {
                operation.run();
                bench.recorder.succeed(started, 1);
            } catch (Exception error) {
                bench.recorder.fail(error);
            }
        }
    }
}
