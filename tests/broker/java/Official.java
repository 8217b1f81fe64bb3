import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The official client with one broker, as producer and as consumer of every kind: {@code Official NAMESRV}. */
public final class Official {
    private static final int API_MILLIS = 60_000; // of requests for routes and groups: the machine may be busy
    // Java skips a heartbeat while another is being sent: until the next one brokers do not know the group.
    private static final int HEARTBEAT_MILLIS = 1000;
    private static final long MILLIS = 20_000;
    private static final MessageQueueSelector FIRST = (queues, message, argument) -> queues.get(0);

    private static String namesrv;

    public static void main(String[] arguments) {
        namesrv = arguments[0];
        try {
            run();
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void run() throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000"); // retry topics are found soon
        DefaultMQProducer producer = new DefaultMQProducer("java-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(API_MILLIS);
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MILLIS);
        producer.start();
        sends(producer);
        System.out.println("concurrent " + concurrent());
        System.out.println("dead " + pulled("%DLQ%java-concurrent", 1));
        System.out.println("orderly " + orderly());
        System.out.println("lite " + pulled("java-topic", 10));
        filtered(producer);
        System.out.println("transactions " + transactions());
        System.out.println("reply " + reply(producer));
        producer.shutdown();
    }

    /** All kinds of sends to one topic. */
    private static void sends(DefaultMQProducer producer) throws Exception {
        String topic = "java-topic";
        System.out.println("sync " + producer.send(message(topic, "sync"), MILLIS).getSendStatus());
        CountDownLatch done = new CountDownLatch(1);
        producer.send(message(topic, "async"), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                System.out.println("async " + result.getSendStatus());
                done.countDown();
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
                done.countDown();
            }
        }, MILLIS);
        done.await(MILLIS, TimeUnit.MILLISECONDS);
        producer.sendOneway(message(topic, "oneway"));
        Collection<Message> batch = new ArrayList<>(List.of(message(topic, "batch-0"), message(topic, "batch-1")));
        System.out.println("batch " + producer.send(batch, MILLIS).getMsgId().split(",").length);
        for (int number = 0; number < 4; number++) {
            producer.send(message(topic, "ordered-" + number), FIRST, null, MILLIS);
        }
        Message delayed = message(topic, "delayed");
        delayed.setDelayTimeLevel(1);
        producer.send(delayed, MILLIS);
    }

    /** A group that fails once for one message, and always for another one. */
    private static Map<String, Integer> concurrent() throws Exception {
        Map<String, Integer> times = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer("java-concurrent", "java-topic");
        consumer.setMaxReconsumeTimes(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            String body = body(messages.get(0));
            int time = times.merge(body, 1, Integer::sum);
            boolean fails = body.equals("async") || (body.equals("sync") && time == 1);
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until(() -> times.size() == 10 && times.get("sync") == 2 && times.get("async") == 2);
        consumer.shutdown();
        return new TreeMap<>(times);
    }

    private static List<String> orderly() throws Exception {
        List<String> seen = new ArrayList<>();
        DefaultMQPushConsumer consumer = consumer("java-orderly", "java-topic");
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            synchronized (seen) {
                for (MessageExt message : messages) {
                    if (body(message).equals("ordered-2") && message.getReconsumeTimes() == 0) {
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    if (body(message).startsWith("ordered")) {
                        seen.add(body(message));
                    }
                }
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.start();
        until(() -> {
            synchronized (seen) {
                return seen.size() == 4;
            }
        });
        consumer.shutdown();
        return seen;
    }

    private static int pulled(String topic, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("java-lite-" + count);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(API_MILLIS);
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MILLIS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        int read = 0;
        long deadline = System.currentTimeMillis() + MILLIS;
        while (read < count && System.currentTimeMillis() < deadline) {
            read += consumer.poll(500).size();
        }
        consumer.commitSync();
        consumer.shutdown();
        return read;
    }

    private static void filtered(DefaultMQProducer producer) throws Exception {
        List<String> seen = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            Message message = message("java-filtered", "filtered-" + number);
            message.putUserProperty("number", "" + number);
            producer.send(message, MILLIS);
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-filtered");
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(API_MILLIS);
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MILLIS);
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("java-filtered", org.apache.rocketmq.client.consumer.MessageSelector.bySql("number > 1"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (seen) {
                messages.forEach(message -> seen.add(body(message)));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until(() -> seen.size() >= 2);
        consumer.shutdown();
        System.out.println("filtered " + seen.stream().sorted().toList());
    }

    /** One transaction is committed, one rolled back, and one is decided by a check. */
    private static List<String> transactions() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("java-transactions");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(API_MILLIS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                System.out.println("checked " + body(message));
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        String topic = "java-transactions";
        producer.sendMessageInTransaction(message(topic, "unknown"), LocalTransactionState.UNKNOW);
        producer.sendMessageInTransaction(message(topic, "rolled-back"), LocalTransactionState.ROLLBACK_MESSAGE);
        producer.sendMessageInTransaction(message(topic, "committed"), LocalTransactionState.COMMIT_MESSAGE);
        List<String> seen = new ArrayList<>();
        DefaultMQPushConsumer consumer = consumer("java-transactions", topic);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (seen) {
                messages.forEach(message -> seen.add(body(message)));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until(() -> seen.size() >= 2);
        consumer.shutdown();
        producer.shutdown();
        return seen.stream().sorted().toList();
    }

    private static String reply(DefaultMQProducer producer) throws Exception {
        DefaultMQPushConsumer consumer = consumer("java-requests", "java-requests");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    byte[] body = ("reply to " + body(message)).getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(message, body), MILLIS);
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message reply = producer.request(message("java-requests", "request"), MILLIS);
        consumer.shutdown();
        return body(reply);
    }

    private static DefaultMQPushConsumer consumer(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(API_MILLIS);
        consumer.setPollNameServerInterval(1000);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MILLIS);
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "tag", body, body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void until(BooleanSupplier holds) throws Exception {
        long deadline = System.currentTimeMillis() + MILLIS;
        while (!holds.getAsBoolean() && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
    }
}
