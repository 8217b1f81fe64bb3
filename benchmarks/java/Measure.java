import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.message.MessageExt;

/** What every workload is measured with, and the lines it tells the runner. */
final class Measure {
    private static final int MAX_SAMPLES = 1 << 21;
    private static final int REPORTED_ERRORS = 3;

    private Measure() {
    }

    static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** Latencies inside the window; everything acknowledged and failed over the whole run. */
    static final class Recorder {
        final long[] latencies = new long[MAX_SAMPLES];
        final AtomicInteger samples = new AtomicInteger();
        final AtomicLong acknowledged = new AtomicLong();
        final AtomicLong errors = new AtomicLong();
        volatile boolean measuring;
        volatile boolean running = true;

        void succeed(long started, int messages) {
            acknowledged.addAndGet(messages);
            if (!measuring) {
                return;
            }
            int place = samples.getAndIncrement();
            if (place < latencies.length) {
                latencies[place] = System.nanoTime() - started;
            }
        }

        void fail(Throwable error) {
            if (errors.incrementAndGet() <= REPORTED_ERRORS) {
                System.err.println(error);
            }
        }

        String percentiles() {
            return percentiles("");
        }

        String percentiles(String prefix) {
            int count = Math.min(samples.get(), latencies.length);
            if (count == 0) {
                return "";
            }
            Arrays.sort(latencies, 0, count);
            return String.format(Locale.ROOT, ",\"%1$sp50_us\":%2$.1f,\"%1$sp99_us\":%3$.1f,\"%1$sp999_us\":%4$.1f,\"%1$smax_us\":%5$.1f",
                prefix, at(0.5, count), at(0.99, count), at(0.999, count), latencies[count - 1] / 1e3);
        }

        private double at(double rank, int count) {
            return latencies[Math.min(count - 1, (int) (rank * count))] / 1e3;
        }
    }

    /** The measured time; what it took of this process, read from the kernel at both its ends. */
    static final class Window {
        private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        private long started;
        private long cpu;
        String figures = "";

        void open() {
            say("START");
            started = System.nanoTime();
            cpu = SYSTEM.getProcessCpuTime();
        }

        void close() throws IOException {
            double spent = (SYSTEM.getProcessCpuTime() - cpu) / 1e9;
            double elapsed = (System.nanoTime() - started) / 1e9;
            figures = ",\"seconds\":" + elapsed + ",\"cpu_seconds\":" + spent
                + ",\"rss_mib\":" + memory("VmHWM") + ",\"rss_now_mib\":" + memory("VmRSS");
            say("STOP");
        }

        private static double memory(String name) throws IOException {
            for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
                if (line.startsWith(name + ":")) {
                    return Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024.0;
                }
            }
            return 0;
        }
    }

    /** Which offsets came, and how many came again. */
    static final class Offsets {
        private final Map<Integer, BitSet> queues = new HashMap<>();
        int unique;
        int repeated;

        synchronized void add(List<MessageExt> messages) {
            for (MessageExt message : messages) {
                BitSet seen = queues.computeIfAbsent(message.getQueueId(), queue -> new BitSet());
                int offset = (int) message.getQueueOffset();
                if (seen.get(offset)) {
                    repeated++;
                } else {
                    seen.set(offset);
                    unique++;
                }
            }
        }

        synchronized int unique() {
            return unique;
        }
    }

    /** Opens and closes a window, if there is one, around the middle nine tenths of a backlog. */
    static final class Progress {
        private final int low;
        private final int high;
        private final Window window;
        private int counted = -1;
        int measured;

        Progress(int total, Window window) {
            low = total / 20;
            high = total - total / 20;
            this.window = window;
        }

        void reach(int count) throws IOException {
            if (window == null) {
                return;
            }
            if (counted < 0 && count >= low) {
                counted = count;
                window.open();
            } else if (measured == 0 && counted >= 0 && count >= high) {
                measured = count - counted;
                window.close();
            }
        }
    }
}
