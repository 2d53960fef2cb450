import java.util.HashMap;
import java.util.Random;

/** A map of a million entries of which some are always being replaced, so that the collector has work. */
public class Churn {
    record Entry(int id, String name, int[] values) {}

    public static void main(String[] arguments) {
        int count = 1_000_000;
        Random random = new Random(1);
        HashMap<Integer, Entry> map = new HashMap<>();
        for (int n = 0; n < count; n++) {
            map.put(n, new Entry(n, "entry " + n, new int[] {n, n * 7, n * 31, 0}));
        }
        long sum = 0;
        for (int round = 0; round < 1_500_000; round++) {
            int key = random.nextInt(count);
            Entry entry = map.get(key);
            sum = (sum * 31 + entry.values()[round & 3] + entry.name().length()) % 1_000_000_007L;
            if (round % 4 == 0) {
                map.put(key, new Entry(key, "round " + round, new int[] {round, key, (int) sum, 1}));
            }
        }
        System.out.println(map.size() + " entries, checksum " + sum);
    }
}
