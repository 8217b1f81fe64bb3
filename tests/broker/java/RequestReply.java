import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The official client as the other side of requests: {@code RequestReply ask|answer NAMESRV TOPIC GROUP [NAMESPACE]}. */
public final class RequestReply {
    private static final int API_MILLIS = 60_000; // of requests for routes and groups: the machine may be busy
    private static final int REQUESTS = 5;
    private static final int TRIES = 5;
    private static final long MILLIS = 10_000;

    private static String namespace;

    @SuppressWarnings("deprecation") // namespaces of version 1 are what is tested
    public static void main(String[] arguments) throws Exception {
        namespace = arguments.length > 4 ? arguments[4] : null;
        DefaultMQProducer producer = new DefaultMQProducer(arguments[3] + "-java");
        producer.setNamesrvAddr(arguments[1]);
        producer.setMqClientApiTimeout(API_MILLIS);
        producer.setNamespace(namespace);
        producer.setHeartbeatBrokerInterval(1000);
        producer.start();
        try {
            if (arguments[0].equals("ask")) {
                ask(producer, arguments[2]);
                Runtime.getRuntime().halt(0);
            }
            answer(producer, arguments[1], arguments[2], arguments[3]);
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void ask(DefaultMQProducer producer, String topic) throws Exception {
        for (int number = 0; number < REQUESTS; number++) {
            byte[] body = ("java" + number).getBytes(StandardCharsets.UTF_8);
            Message reply = requestUntilKnown(producer, new Message(topic, body));
            System.out.println("REPLY " + new String(reply.getBody(), StandardCharsets.UTF_8));
        }
    }

    /** The first heartbeat is skipped if another is being sent; until the next one brokers drop replies. */
    private static Message requestUntilKnown(DefaultMQProducer producer, Message message) throws Exception {
        for (int attempt = 1; ; attempt++) {
            try {
                return producer.request(message, MILLIS);
            } catch (RequestTimeoutException error) {
                if (attempt == TRIES) {
                    throw error;
                }
            }
        }
    }

    @SuppressWarnings("deprecation")
    private static void answer(DefaultMQProducer producer, String namesrv, String topic, String group)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(API_MILLIS);
        consumer.setNamespace(namespace);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String text = new String(message.getBody(), StandardCharsets.UTF_8);
                    byte[] body = text.toUpperCase().getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(message, body), MILLIS);
                } catch (Exception error) {
                    System.out.println("FAILED " + error);
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("READY");
    }
}
