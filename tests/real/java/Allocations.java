import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Allocations by Apache's classes. A line of input: topic, own client id, client ids joined by ',', brokers as
 * name:queues joined by ',', separated by tabs. A line of output: the own queues, broker:id joined by ',', for each of
 * the three strategies, separated by tabs.
 */
public class Allocations {
    public static void main(String[] args) throws Exception {
        List<AllocateMessageQueueStrategy> strategies = Arrays.asList(new AllocateMessageQueueAveragely(),
            new AllocateMessageQueueAveragelyByCircle(), new AllocateMessageQueueConsistentHash());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t");
            List<String> members = new ArrayList<>(Arrays.asList(parts[2].split(",")));
            List<MessageQueue> queues = new ArrayList<>();
            for (String broker : parts[3].split(",")) {
                String[] pair = broker.split(":");
                for (int id = 0; id < Integer.parseInt(pair[1]); id++) {
                    queues.add(new MessageQueue(parts[0], pair[0], id));
                }
            }
            Collections.sort(members);
            Collections.sort(queues);
            List<String> answers = new ArrayList<>();
            for (AllocateMessageQueueStrategy strategy : strategies) {
                List<String> mine = new ArrayList<>();
                for (MessageQueue queue : strategy.allocate("group", parts[1], queues, members)) {
                    mine.add(queue.getBrokerName() + ":" + queue.getQueueId());
                }
                answers.add(String.join(",", mine));
            }
            out.println(String.join("\t", answers));
        }
        out.flush();
    }
}
