import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The official client at the other side of every kind of message: {@code Exchange send|read NAMESRV TOPIC GROUP NAMESPACE COUNT}. */
public final class Exchange {
    private static final int API_MILLIS = 60_000; // of requests for routes and groups: the machine may be busy
    private static final int IN_ORDER = 5;

    private static final int MILLIS = 30_000; // machines that test are busy

    public static void main(String[] arguments) throws Exception {
        try {
            run(arguments);
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void run(String[] arguments) throws Exception {
        String namespace = arguments[4];
        if (arguments[0].equals("send")) {
            send(arguments[1], arguments[2], arguments[3], namespace);
        } else {
            read(arguments[1], arguments[2], arguments[3], null, Integer.parseInt(arguments[5]));
            read(arguments[1], arguments[2], arguments[3], namespace, 1);
        }
    }

    private static Message message(String topic, String name) {
        Message message = new Message(topic, "tag-" + name, name, name.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("own", "\u00fc " + name);
        message.setFlag(7);
        return message;
    }

    @SuppressWarnings("deprecation") // namespaces of version 1 are what is tested
    private static void send(String namesrv, String topic, String group, String namespace) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "-java");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(API_MILLIS);
        producer.setSendMsgTimeout(MILLIS);
        producer.start();
        producer.send(message(topic, "plain"));
        producer.sendOneway(message(topic, "oneway"));
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            batch.add(message(topic, "batch" + number));
        }
        producer.send(batch);
        Message delayed = message(topic, "delayed");
        delayed.setDelayTimeLevel(1);
        producer.send(delayed);
        for (int number = 0; number < IN_ORDER; number++) {
            producer.send(message(topic, "ordered" + number), new SelectMessageQueueByHash(), "key");
        }
        producer.shutdown();
        transactions(namesrv, topic, group);
        DefaultMQProducer inside = new DefaultMQProducer(group + "-inside");
        inside.setNamesrvAddr(namesrv);
        inside.setMqClientApiTimeout(API_MILLIS);
        inside.setSendMsgTimeout(MILLIS);
        inside.setNamespace(namespace);
        inside.start();
        inside.send(message(topic, "namespaced"));
        inside.shutdown();
    }

    private static void transactions(String namesrv, String topic, String group) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group + "-tx");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(API_MILLIS);
        producer.setSendMsgTimeout(MILLIS);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        producer.sendMessageInTransaction(message(topic, "committed"), LocalTransactionState.COMMIT_MESSAGE);
        producer.sendMessageInTransaction(message(topic, "rolled-back"), LocalTransactionState.ROLLBACK_MESSAGE);
        producer.shutdown();
    }

    @SuppressWarnings("deprecation")
    private static void read(String namesrv, String topic, String group, String namespace, int count)
            throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(API_MILLIS);
        consumer.setNamespace(namespace);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        for (int left = count; left > 0; ) {
            for (MessageExt message : consumer.poll(1000)) {
                System.out.println(String.join(" ", "read", message.getTopic(), message.getTags(), message.getKeys(),
                        message.getUserProperty("own"), String.valueOf(message.getFlag()),
                        new String(message.getBody(), StandardCharsets.UTF_8)));
                left--;
            }
        }
        consumer.shutdown();
    }
}
