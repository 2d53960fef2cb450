import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Churn MIB: a live heap of about MIB, half of it changed in random places, then checked by two threads. */
public final class Churn {
    private static byte[] block(long key, int version) {
        byte[] bytes = new byte[1024 + (int) (key % 512)];
        long state = key * 31 + version;
        for (int i = 0; i < bytes.length; i++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            bytes[i] = (byte) (state >>> 56);
        }
        return bytes;
    }

    private static void check(long key, int version, byte[] bytes) {
        if (!java.util.Arrays.equals(bytes, block(key, version))) {
            System.out.println("wrong block " + key + " version " + version);
            System.exit(3);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        int count = Integer.parseInt(arguments[0]) * 800;
        Map<Long, byte[]> blocks = new HashMap<>();
        int[] versions = new int[count];
        long state = 7;
        for (long key = 0; key < count; key++) {
            blocks.put(key, block(key, 0));
        }
        for (int step = 0; step < count / 2; step++) {
            state = state * 6364136223846793005L + 1442695040888963407L;
            int key = (int) ((state >>> 33) % count);
            check(key, versions[key], blocks.get((long) key));
            blocks.put((long) key, block(key, ++versions[key]));
        }
        List<Thread> threads = new ArrayList<>();
        for (int part = 0; part < 2; part++) {
            int first = part;
            Thread thread = new Thread(() -> {
                for (int key = first; key < count; key += 2) {
                    check(key, versions[key], blocks.get((long) key));
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        long sum = 0;
        for (int key = 0; key < count; key++) {
            sum = sum * 31 + java.util.Arrays.hashCode(blocks.get((long) key));
        }
        System.out.println("churn: ok " + Long.toHexString(sum));
    }
}
