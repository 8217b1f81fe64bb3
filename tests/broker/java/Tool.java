import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs commands of the official admin tool in one JVM: each argument is a command, with its words apart by spaces. */
public final class Tool {
    public static void main(String[] commands) {
        for (String command : commands) {
            System.out.println("@@@ " + command);
            MQAdminStartup.main0(command.split(" "), null);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
