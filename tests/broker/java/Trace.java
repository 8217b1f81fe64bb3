import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceTransferBean;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The official client with its trace on; and its own reader and writer of trace records. */
public final class Trace {
    private static final int API_MILLIS = 60_000; // of requests for routes and groups: the machine may be busy

    public static void main(String[] arguments) throws Exception {
        try {
            switch (arguments[0]) {
                case "send" -> send(arguments[1], arguments[2], arguments[3], arguments[4]);
                case "consume" -> consume(arguments[1], arguments[2], arguments[3]);
                default -> rewrite(arguments[1]);
            }
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.exit(0);
    }

    private static void send(String namesrv, String topic, String group, String body) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group, true, null);
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(API_MILLIS);
        producer.start();
        System.out.println("said " + producer.send(new Message(topic, "new", "42 43", body.getBytes(StandardCharsets.UTF_8)), 60_000).getMsgId());
        letTracesLeave();
        producer.shutdown();
    }

    private static void consume(String namesrv, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(API_MILLIS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.setAwaitTerminationMillisWhenShutdown(5_000); // or the end of the last handler is not traced
        CountDownLatch seen = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!seen.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException("nothing came");
        }
        letTracesLeave();
        consumer.shutdown();
    }

    /** They are sent in the background, and a shutdown does not wait for all of them. */
    private static void letTracesLeave() throws InterruptedException {
        Thread.sleep(3_000);
    }

    /** Reads records and writes them again, one a line, as the official code does both. */
    private static void rewrite(String encoded) throws Exception {
        String text = new String(Base64.getDecoder().decode(encoded), StandardCharsets.UTF_8);
        List<TraceContext> read = TraceDataEncoder.decoderFromTraceDataString(text);
        for (TraceContext context : read) {
            context.setAccessChannel(AccessChannel.LOCAL); // not part of what is read, and asked for when writing
            TraceTransferBean written = TraceDataEncoder.encoderFromContextBean(context);
            System.out.println("said " + Base64.getEncoder().encodeToString(written.getTransData().getBytes(StandardCharsets.UTF_8)));
        }
    }
}
