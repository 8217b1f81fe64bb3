import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs commands of the official admin tool in one JVM: each line is a command, with its words apart by single spaces. */
public final class Tool {
    public static void main(String[] arguments) throws Exception {
        endWaitsOfShutdowns();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            forgetCommands();
            MQAdminStartup.main0(line.isEmpty() ? new String[0] : line.split(" "), null);
            System.err.flush();
            System.out.println();
            System.out.println("@@@");
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** Some command objects keep their client, which was shut down: the tool makes new ones if its list is empty. */
    private static void forgetCommands() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** A client that shuts down joins its event thread, which waits up to 3 seconds for an event: an interrupt ends the wait. */
    private static void endWaitsOfShutdowns() {
        Thread main = Thread.currentThread();
        Thread waker = new Thread(() -> {
            Thread[] threads = new Thread[1000];
            while (true) {
                if (joins(main.getStackTrace())) {
                    for (int i = Thread.enumerate(threads) - 1; i >= 0; i--) {
                        if (threads[i].getName().contains("NettyEventExecutor")) {
                            threads[i].interrupt();
                        }
                    }
                }
                try {
                    Thread.sleep(20);
                } catch (InterruptedException e) {
                    return;
                }
            }
        });
        waker.setDaemon(true);
        waker.start();
    }

    private static boolean joins(StackTraceElement[] stack) {
        for (StackTraceElement frame : stack) {
            if (frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }
}
