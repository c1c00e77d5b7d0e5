import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullCallback;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Parts of Apache's client that few programs use: java Families NAMESRV PART TOPIC COUNT [TRACES].
 *
 * It sends COUNT messages to TOPIC, whose bodies are their numbers, receives them as PART says, prints a line "KIND
 * value" for each thing that happened, and ends. TRACES is how many traces each message has. The same source compiles against 4.9.7 and 5.3.3.
 */
public class Families {
    private static final long PATIENCE_MS = 60_000;
    private static final List<String> SENT = new ArrayList<>();
    private static String namesrv, topic;
    private static int count;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        topic = args[2];
        count = Integer.parseInt(args[3]);
        switch (args[1]) {
            case "trace": trace(Integer.parseInt(args[4])); break;
            case "lite-pull": litePull(); break;
            case "lmq": lmq(); break;
            default: throw new IllegalArgumentException(args[1]);
        }
        System.exit(0);
    }

    private static void say(String kind, Object value) {
        System.out.println(kind + " " + value);
    }

    private static String body(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void send(DefaultMQProducer producer, String further) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        for (int number = 0; number < count; number++) {
            Message message = new Message(topic, ("" + number).getBytes(StandardCharsets.UTF_8));
            if (further != null) message.putUserProperty("INNER_MULTI_DISPATCH", further);
            SendResult result = producer.send(message);
            SENT.add(result.getMsgId());
            say("sent", result.getMsgId());
        }
    }

    /** Send and consume with traces, and wait until they are stored: 5.3.3's client loses some at its shutdown. */
    private static void trace(int each) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("tracing-producers", true, null);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("tracing-consumers", true, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Set<String> got = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) got.add(body(message));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        send(producer, null);
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (got.size() < count && System.currentTimeMillis() < deadline) Thread.sleep(50);
        for (String number : got) say("got", number);
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer("trace-readers");
        reader.setNamesrvAddr(namesrv);
        reader.start();
        MessageQueue queue = reader.fetchSubscribeMessageQueues("RMQ_SYS_TRACE_TOPIC").iterator().next();
        StringBuilder traces = new StringBuilder();
        for (long at = 0; !isTraced(traces, each) && System.currentTimeMillis() < deadline;) {
            PullResult result = reader.pull(queue, "*", at, 32);
            if (result.getMsgFoundList() != null) for (Message message : result.getMsgFoundList()) traces.append(body(message));
            else Thread.sleep(50);
            at = result.getNextBeginOffset();
        }
        for (String trace : traces.toString().split("\u0002")) say("trace", trace);
        reader.shutdown();
        consumer.shutdown();
        producer.shutdown();
    }

    private static boolean isTraced(CharSequence traces, int each) {
        for (String id : SENT) if (traces.toString().split(id, -1).length <= each) return false;
        return true;
    }

    /** A member that is given queues polls half of the messages; its successor goes on; others assign them themselves. */
    private static void litePull() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("lite-producers");
        send(producer, null);
        poll("first", count / 2, null);
        poll("second", count - count / 2, null);
        // A consumer each: where one seeks in two queues, 5.3.3 can interrupt the pull of the first after it took the
        // offset, and goes on from an older one.
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) poll("assigned", (int) producer.maxOffset(queue), queue);
        producer.shutdown();
    }

    private static void poll(String name, int wanted, MessageQueue assigned) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(assigned == null ? "lite-subscribed" : "lite-assigned");
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(1);
        if (assigned == null) consumer.subscribe(topic, "*");
        consumer.start();
        if (assigned != null) {
            consumer.assign(Collections.singleton(assigned));
            consumer.seekToBegin(assigned);
        }
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        // A pull that was on its way when seekToBegin() ran can hand its messages over a second time.
        Set<String> seen = new HashSet<>();
        while (seen.size() < wanted && System.currentTimeMillis() < deadline)
            for (MessageExt message : consumer.poll(1000)) if (seen.add(body(message))) say(name, body(message));
        consumer.commitSync();
        if (assigned != null) say("committed", consumer.committed(assigned));
        consumer.shutdown();
    }

    /** Wait at the end of two light queues, then send to both. */
    private static void lmq() throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("CID_RMQ_SYS_LMQ");
        consumer.setNamesrvAddr(namesrv);
        consumer.setRegisterTopics(Collections.singleton(topic));
        consumer.start();
        String broker = consumer.fetchSubscribeMessageQueues(topic).iterator().next().getBrokerName();
        for (String name : new String[] {"%LMQ%one", "%LMQ%two"}) queues.add(new MessageQueue(name, broker, 0));
        List<CompletableFuture<PullResult>> held = new ArrayList<>();
        for (MessageQueue queue : queues) {
            CompletableFuture<PullResult> answer = new CompletableFuture<>();
            held.add(answer);
            consumer.pullBlockIfNotFound(queue, "*", 0, 32, new PullCallback() {
                @Override public void onSuccess(PullResult result) {
                    answer.complete(result);
                }

                @Override public void onException(Throwable trouble) {
                    answer.completeExceptionally(trouble);
                }
            });
        }
        DefaultMQProducer producer = new DefaultMQProducer("lmq-producers");
        send(producer, "%LMQ%one,%LMQ%two");
        for (CompletableFuture<PullResult> answer : held)
            say("woken", answer.get(PATIENCE_MS, TimeUnit.MILLISECONDS).getPullStatus());
        for (MessageQueue queue : queues) {
            say("range", consumer.minOffset(queue) + "-" + consumer.maxOffset(queue));
            for (long at = 0; at < count;) {
                PullResult result = consumer.pull(queue, "*", at, 32);
                for (MessageExt message : result.getMsgFoundList()) say(queue.getTopic(), body(message));
                at = result.getNextBeginOffset();
            }
        }
        producer.shutdown();
        consumer.shutdown();
    }
}
