import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The official client as the other side of requests: {@code RequestReply ask|answer NAMESRV TOPIC GROUP [NAMESPACE]}. */
public final class RequestReply {
    private static final int REQUESTS = 5;
    private static final long MILLIS = 20_000;

    private static String namespace;

    @SuppressWarnings("deprecation") // namespaces of version 1 are what is tested
    public static void main(String[] arguments) throws Exception {
        namespace = arguments.length > 4 ? arguments[4] : null;
        DefaultMQProducer producer = new DefaultMQProducer(arguments[3] + "-java");
        producer.setNamesrvAddr(arguments[1]);
        producer.setNamespace(namespace);
        producer.start();
        if (arguments[0].equals("ask")) {
            ask(producer, arguments[2]);
            Runtime.getRuntime().halt(0);
        }
        answer(producer, arguments[1], arguments[2], arguments[3]);
    }

    private static void ask(DefaultMQProducer producer, String topic) throws Exception {
        for (int number = 0; number < REQUESTS; number++) {
            byte[] body = ("java" + number).getBytes(StandardCharsets.UTF_8);
            Message reply = producer.request(new Message(topic, body), MILLIS);
            System.out.println("REPLY " + new String(reply.getBody(), StandardCharsets.UTF_8));
        }
    }

    @SuppressWarnings("deprecation")
    private static void answer(DefaultMQProducer producer, String namesrv, String topic, String group)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setNamespace(namespace);
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
