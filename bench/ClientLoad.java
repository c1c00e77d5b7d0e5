import com.alibaba.fastjson.JSONObject;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Java's client as the peer of bench/clientload.py, with the same commands and answers: see there.
 */
public class ClientLoad {
    static final PrintStream OUT = System.out;
    static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    static final int MOST_LATENCIES = 4_000_000;
    static String namesrv;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        System.setOut(System.err); // what a library prints is no answer
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        DefaultMQProducer producer = new DefaultMQProducer("bench-producers");
        producer.setNamesrvAddr(namesrv);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        for (String line; (line = in.readLine()) != null;) {
            JSONObject command = JSONObject.parseObject(line);
            JSONObject answer;
            try {
                answer = command.getString("do").equals("send") ? send(producer, command) : consume(command);
            } catch (Throwable error) {
                answer = new JSONObject();
                answer.put("error", error.toString());
            }
            OUT.println(answer.toJSONString());
            OUT.flush();
        }
        System.exit(0);
    }

    static JSONObject send(DefaultMQProducer producer, JSONObject command) throws Exception {
        String topic = command.getString("topic");
        int inFlight = command.getIntValue("inFlight");
        double rate = command.getDoubleValue("rate");
        byte[] body = new byte[command.getIntValue("bodyBytes")];
        Arrays.fill(body, (byte) 'x');
        long[] latencies = new long[MOST_LATENCIES];
        AtomicInteger good = new AtomicInteger();
        AtomicInteger bad = new AtomicInteger();
        Semaphore room = new Semaphore(inFlight);
        long cpu = SYSTEM.getProcessCpuTime();
        long began = System.nanoTime();
        long end = began + (long) (command.getDoubleValue("seconds") * 1e9);
        if (inFlight == 1) {
            for (long now; (now = System.nanoTime()) < end;) {
                producer.send(new Message(topic, body));
                latencies[good.getAndIncrement()] = System.nanoTime() - now;
            }
        } else {
            long due = began;
            while (System.nanoTime() < end) {
                if (rate > 0) {
                    for (long left; (left = due - System.nanoTime()) > 0;) {
                        LockSupport.parkNanos(left);
                    }
                    due += (long) (1e9 / rate);
                }
                room.acquire();
                long at = System.nanoTime();
                producer.send(new Message(topic, body), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        latencies[good.getAndIncrement()] = System.nanoTime() - at;
                        room.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        bad.incrementAndGet();
                        room.release();
                    }
                });
            }
            room.acquire(inFlight);
        }
        long took = System.nanoTime() - began;
        long[] sorted = Arrays.copyOf(latencies, good.get());
        Arrays.sort(sorted);
        JSONObject answer = figures(good.get(), took, SYSTEM.getProcessCpuTime() - cpu);
        answer.put("bad", bad.get());
        answer.put("p50", sorted[sorted.length / 2] / 1e3);
        answer.put("p99", sorted[sorted.length * 99 / 100] / 1e3);
        return answer;
    }

    static JSONObject consume(JSONObject command) throws Exception {
        int count = command.getIntValue("count");
        AtomicInteger got = new AtomicInteger();
        AtomicLong first = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(command.getString("group"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(command.getIntValue("batch"));
        consumer.setConsumeThreadMin(20);
        consumer.setConsumeThreadMax(20);
        consumer.subscribe(command.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (got.addAndGet(messages.size()) >= count) {
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long cpu = SYSTEM.getProcessCpuTime();
        consumer.start();
        boolean complete = all.await(120, TimeUnit.SECONDS);
        long took = System.nanoTime() - first.get();
        JSONObject answer = figures(count, took, SYSTEM.getProcessCpuTime() - cpu);
        consumer.shutdown();
        answer.put("bad", complete ? 0 : count - got.get());
        answer.put("p50", 0.0);
        answer.put("p99", 0.0);
        return answer;
    }

    static JSONObject figures(int messages, long tookNs, long cpuNs) {
        JSONObject answer = new JSONObject();
        answer.put("rate", messages / (tookNs / 1e9));
        answer.put("cpu_us", cpuNs / 1e3 / messages);
        return answer;
    }
}
