import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The official client at the other side: sends compressed bodies, or tells the hashes of those it reads. */
public final class Peer {
    private static final int API_MILLIS = 60_000; // of requests for routes and groups: the machine may be busy

    public static void main(String[] arguments) throws Exception {
        try {
            if (arguments[0].equals("send")) {
                send(arguments[1], arguments[2], arguments[3].split(","), arguments[4].split(","));
            } else {
                read(arguments[1], arguments[2], arguments[3], Integer.parseInt(arguments[4]));
            }
        } catch (Throwable error) { // the client's threads would keep the process alive
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.exit(0);
    }

    private static void send(String namesrv, String topic, String[] kinds, String[] sizes) throws Exception {
        for (String kind : kinds) {
            System.setProperty("rocketmq.message.compressType", kind); // each producer looks at it
            DefaultMQProducer producer = new DefaultMQProducer("peer-" + kind);
            producer.setNamesrvAddr(namesrv);
            producer.setMqClientApiTimeout(API_MILLIS);
            producer.start();
            for (String size : sizes) {
                String key = kind + "-" + size;
                String text = (key + " compresses well; ").repeat(1 + Integer.parseInt(size) / key.length());
                byte[] body = text.substring(0, Integer.parseInt(size)).getBytes(StandardCharsets.UTF_8);
                producer.send(new Message(topic, null, key, body), 30_000);
            }
            producer.shutdown();
        }
    }

    private static void read(String namesrv, String topic, String group, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(API_MILLIS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        for (int left = count; left > 0; ) {
            for (MessageExt message : consumer.poll(1000)) {
                String hash = HexFormat.of().formatHex(digest.digest(message.getBody()));
                System.out.println("read " + message.getKeys() + " " + hash);
                left--;
            }
        }
        consumer.shutdown();
    }
}
