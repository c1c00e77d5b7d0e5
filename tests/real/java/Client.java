import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * An unmodified RocketMQ client behind a pipe: java Client NAMESRV.
 *
 * Each line on stdin is a JSON object {"id": n, "do": command, ...}; commands run side by side. Each line on stdout is
 * an event; a command ends with {"event": "done", "id": n, ...} or {"event": "failed", "id": n, "error": text}.
 * The program ends when stdin does. The same source compiles against 4.9.7 and 5.3.3.
 */
public class Client {
    static final PrintStream OUT = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false);
    static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();
    static final Map<String, TransactionMQProducer> TRANSACTIONAL = new ConcurrentHashMap<>();
    static String namesrv;
    static DefaultMQProducer producer;
    static DefaultMQPullConsumer reader;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            JSONObject command = JSON.parseObject(line);
            new Thread(() -> answer(command)).start();
        }
        for (DefaultMQPushConsumer consumer : CONSUMERS.values()) consumer.shutdown();
        if (reader != null) reader.shutdown();
        if (producer != null) producer.shutdown();
        for (TransactionMQProducer one : TRANSACTIONAL.values()) one.shutdown();
        System.exit(0);
    }

    static void answer(JSONObject command) {
        JSONObject done = new JSONObject();
        done.put("id", command.getInteger("id"));
        try {
            switch (command.getString("do")) {
                case "send": send(command, done); break;
                case "consume": consume(command); break;
                case "leave": CONSUMERS.remove(command.getString("member")).shutdown(); break;
                case "read": read(command, done); break;
                case "offsets": offsets(command, done); break;
                case "query": query(command, done); break;
                case "replier": replier(command); break;
                case "transact": transact(command, done); break;
                case "answer": answerBy = command.getString("by"); transactional(command.getString("group")); break;
                case "request": request(command, done); break;
                default: throw new IllegalArgumentException("unknown command " + command);
            }
            done.put("event", "done");
        } catch (Throwable trouble) {
            trouble.printStackTrace();
            done.put("event", "failed");
            done.put("error", trouble.toString());
        }
        emit(done);
    }

    static void emit(JSONObject event) {
        byte[] line = (event.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(line, 0, line.length);
            OUT.flush();
        }
    }

    // ---- sending ---------------------------------------------------------------------------------------------------

    static synchronized DefaultMQProducer producer(int timeoutMs) throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("client-producer");
            producer.setNamesrvAddr(namesrv);
            producer.setPollNameServerInterval(2000);
            producer.setHeartbeatBrokerInterval(5000);
            producer.setRetryTimesWhenSendFailed(0);
            producer.setRetryTimesWhenSendAsyncFailed(0);
            producer.setMaxMessageSize(4 << 20);
            producer.start();
        }
        producer.setSendMsgTimeout(timeoutMs);
        return producer;
    }

    /** What a "send" command asks for, and what became of it so far. */
    static class Job {
        final JSONObject command;
        final DefaultMQProducer producer;
        final Random chance;
        final int attempts, least, most;
        /** Message number i goes to queue i, whatever becomes of those before. */
        final boolean inTurn;
        final AtomicInteger ok = new AtomicInteger(), retried = new AtomicInteger();
        final List<Integer> lost = new ArrayList<>();

        Job(JSONObject command) throws Exception {
            this.command = command;
            producer = producer(command.getIntValue("timeoutMs"));
            attempts = command.getIntValue("attempts");
            inTurn = command.getBooleanValue("inTurn");
            least = command.getJSONArray("sizes").getIntValue(0);
            most = command.getJSONArray("sizes").getIntValue(1);
            chance = new Random(command.getString("prefix").hashCode());
        }

        /** Message number i: its key, tag and body follow from the command and i alone. */
        Message message(int i) {
            String key = command.getString("prefix") + "-" + i;
            JSONArray tags = command.getJSONArray("tags");
            Random own = new Random(key.hashCode());
            byte[] head = (key + " \u6d88\u606f ").getBytes(StandardCharsets.UTF_8);
            byte[] body = new byte[Math.max(head.length, least + own.nextInt(most - least + 1))];
            own.nextBytes(body);
            System.arraycopy(head, 0, body, 0, head.length);
            Message m = new Message(command.getString("topic"), tags.getString(i % tags.size()), key, body);
            m.putUserProperty("number", "" + i);
            return m;
        }

        /** Send one after the other until acknowledged; a failure is repeated, as a careful application does. */
        void sync(Message m, int i, String how) throws Exception {
            for (int attempt = 1; ; attempt++) {
                try {
                    sent(m, inTurn ? producer.send(m, (queues, one, none) -> queues.get(i % queues.size()), null) : producer.send(m), 0, how);
                    return;
                } catch (Exception trouble) {
                    if (attempt >= attempts) {
                        synchronized (lost) { lost.add(i); }
                        report(i, trouble);
                        return;
                    }
                    retried.incrementAndGet();
                    Thread.sleep(200);
                }
            }
        }

        void report(int i, Throwable trouble) {
            JSONObject event = new JSONObject();
            event.put("event", "trouble");
            event.put("number", i);
            event.put("error", String.valueOf(trouble));
            emit(event);
        }

        void async(Message m, int i, Semaphore room, List<Integer> again) throws Exception {
            room.acquire();
            SendCallback callback = new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    sent(m, result, 0, "async");
                    room.release();
                }

                @Override public void onException(Throwable trouble) {
                    synchronized (again) { again.add(i); }
                    room.release();
                }
            };
            try {
                producer.send(m, callback);
            } catch (Exception trouble) {
                callback.onException(trouble);
            }
        }

        void batch(List<Message> messages, int first) throws Exception {
            for (int attempt = 1; ; attempt++) {
                try {
                    SendResult result = producer.send(messages);
                    for (int j = 0; j < messages.size(); j++) sent(messages.get(j), result, j, "batch");
                    return;
                } catch (Exception trouble) {
                    if (attempt >= attempts) {
                        synchronized (lost) { for (int j = 0; j < messages.size(); j++) lost.add(first + j); }
                        report(first, trouble);
                        return;
                    }
                    retried.incrementAndGet();
                    Thread.sleep(200);
                }
            }
        }

        void sent(Message m, SendResult result, int place, String how) {
            JSONObject event = describe(m);
            event.put("event", "sent");
            event.put("how", how);
            if (result != null) {
                String[] ids = String.valueOf(result.getOffsetMsgId()).split(",");
                event.put("status", result.getSendStatus().name());
                event.put("msgId", result.getMsgId());
                event.put("offsetMsgId", ids[Math.min(place, ids.length - 1)]);
                event.put("broker", result.getMessageQueue().getBrokerName());
                event.put("queue", result.getMessageQueue().getQueueId());
                event.put("offset", result.getQueueOffset() + place);
            }
            ok.incrementAndGet();
            emit(event);
        }
    }

    static void send(JSONObject command, JSONObject done) throws Exception {
        Job job = new Job(command);
        int first = command.getIntValue("first"), end = first + command.getIntValue("count");
        String how = command.getString("how");
        Semaphore room = new Semaphore(128);
        List<Integer> again = new ArrayList<>();
        for (int i = first; i < end;) {
            String now = how.equals("mixed") ? new String[] {"async", "batch", "async", "batch", "sync"}[job.chance.nextInt(5)] : how;
            if (now.equals("batch")) {
                List<Message> batch = new ArrayList<>();
                int from = i;
                for (int size = 2 + job.chance.nextInt(15); i < end && batch.size() < size; i++) batch.add(job.message(i));
                job.batch(batch, from);
                continue;
            }
            for (int run = now.equals("sync") ? 2 : 20; i < end && run > 0; run--, i++) {
                Message m = job.message(i);
                if (now.equals("sync")) job.sync(m, i, "sync");
                else if (now.equals("async")) job.async(m, i, room, again);
                else oneway(job, m);
            }
        }
        room.acquire(128);
        for (int i : again) job.sync(job.message(i), i, "async");
        done.put("ok", job.ok.get());
        done.put("retried", job.retried.get() + again.size());
        done.put("lost", job.lost);
    }

    static void oneway(Job job, Message m) throws Exception {
        job.producer.sendOneway(m);
        job.sent(m, null, 0, "oneway");
    }

    // ---- transactions ----------------------------------------------------------------------------------------------

    /** The property of a message in which this member looks when a broker asks it; unknown without it. */
    static volatile String answerBy = "checked";

    /** A member of a producer group. Property "local" of a message is the state when it has been sent. */
    static synchronized TransactionMQProducer transactional(String group) throws Exception {
        TransactionMQProducer found = TRANSACTIONAL.get(group);
        if (found != null) return found;
        TransactionMQProducer made = new TransactionMQProducer(group);
        made.setNamesrvAddr(namesrv);
        made.setPollNameServerInterval(2000);
        made.setHeartbeatBrokerInterval(2000);
        made.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message m, Object argument) {
                return LocalTransactionState.valueOf(m.getUserProperty("local"));
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt m) {
                JSONObject event = describe(m, "checked");
                event.put("transaction", m.getTransactionId());
                event.put("topic", m.getTopic());
                emit(event);
                String state = m.getUserProperty(answerBy);
                return state == null ? LocalTransactionState.UNKNOW : LocalTransactionState.valueOf(state);
            }
        });
        made.start();
        TRANSACTIONAL.put(group, made);
        return made;
    }

    static void transact(JSONObject command, JSONObject done) throws Exception {
        TransactionMQProducer transactions = transactional(command.getString("group"));
        int count = command.getIntValue("count");
        for (int i = 0; i < count; i++) {
            String key = command.getString("prefix") + "-" + i;
            Message m = new Message(command.getString("topic"), "TagA", key, (key + " body").getBytes(StandardCharsets.UTF_8));
            for (Map.Entry<String, Object> one : command.getJSONObject("properties").entrySet()) {
                m.putUserProperty(one.getKey(), (String) one.getValue());
            }
            TransactionSendResult result = transactions.sendMessageInTransaction(m, null);
            JSONObject event = describe(m);
            event.put("event", "transaction");
            event.put("status", result.getSendStatus().name());
            event.put("state", result.getLocalTransactionState().name());
            event.put("msgId", result.getMsgId());
            event.put("offsetMsgId", result.getOffsetMsgId());
            emit(event);
        }
        done.put("ok", count);
    }

    static JSONObject describe(Message m) {
        JSONObject o = new JSONObject();
        o.put("key", m.getKeys() == null ? "" : m.getKeys());
        o.put("tag", m.getTags() == null ? "" : m.getTags());
        o.put("size", m.getBody() == null ? 0 : m.getBody().length);
        o.put("hash", hash(m.getBody() == null ? new byte[0] : m.getBody()));
        return o;
    }

    static JSONObject describe(MessageExt m, String event) {
        JSONObject o = describe(m);
        o.put("event", event);
        o.put("msgId", m.getMsgId());
        o.put("queue", m.getQueueId());
        o.put("offset", m.getQueueOffset());
        o.put("phy", m.getCommitLogOffset());
        o.put("reconsumed", m.getReconsumeTimes());
        return o;
    }

    static String hash(byte[] data) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-256").digest(data)) text.append(String.format("%02x", b));
            return text.substring(0, 32);
        } catch (Exception impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    // ---- receiving -------------------------------------------------------------------------------------------------

    static void consume(JSONObject command) throws Exception {
        String member = command.getString("member");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(member);
        String from = command.getString("from");
        consumer.setConsumeFromWhere(from == null ? ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET : ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        if (from != null) consumer.setConsumeTimestamp(from);
        if (command.getBooleanValue("broadcast")) broadcast(consumer);
        consumer.setPollNameServerInterval(2000);
        consumer.setHeartbeatBrokerInterval(5000);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        String sql = command.getString("sql");
        if (sql == null) consumer.subscribe(command.getString("topic"), command.getString("expression"));
        else consumer.subscribe(command.getString("topic"), MessageSelector.bySql(sql));
        int pauseMs = command.getIntValue("pauseMs");
        if (command.getBooleanValue("order")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                got(messages, member, pauseMs);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            boolean fails = command.getBooleanValue("fails");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                got(messages, member, pauseMs);
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        CONSUMERS.put(member, consumer);
        consumer.start();
    }

    /** The package of MessageModel is another one in 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
        Class model = consumer.getMessageModel().getClass();
        DefaultMQPushConsumer.class.getMethod("setMessageModel", model).invoke(consumer, Enum.valueOf(model, "BROADCASTING"));
    }

    static void got(List<MessageExt> messages, String member, int pauseMs) {
        for (MessageExt m : messages) {
            JSONObject event = describe(m, "got");
            event.put("member", member);
            event.put("at", System.currentTimeMillis());
            emit(event);
        }
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    static synchronized DefaultMQPullConsumer reader() throws Exception {
        if (reader == null) {
            reader = new DefaultMQPullConsumer("client-reader");
            reader.setNamesrvAddr(namesrv);
            reader.setPollNameServerInterval(2000);
            reader.start();
        }
        return reader;
    }

    /** Every message of every queue, from the queue's minimum to its maximum. */
    static void read(JSONObject command, JSONObject done) throws Exception {
        JSONObject queues = new JSONObject();
        for (MessageQueue queue : new TreeSet<>(reader().fetchSubscribeMessageQueues(command.getString("topic")))) {
            long at = reader().minOffset(queue), end = reader().maxOffset(queue);
            queues.put(queue.getBrokerName() + "-" + queue.getQueueId(), new long[] {at, end});
            while (at < end) {
                PullResult result = reader().pull(queue, "*", at, 32);
                if (result.getMsgFoundList() != null) for (MessageExt m : result.getMsgFoundList()) emit(describe(m, "read"));
                if (result.getNextBeginOffset() <= at) throw new IllegalStateException(queue + " stands still: " + result);
                at = result.getNextBeginOffset();
            }
        }
        done.put("queues", queues);
    }

    // ---- request-reply -----------------------------------------------------------------------------------------------

    /** Answer each message of a topic with its body behind "re: ". */
    static void replier(JSONObject command) throws Exception {
        DefaultMQProducer answers = producer(10000);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(command.getString("member"));
        consumer.setPollNameServerInterval(2000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(command.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt m : messages) {
                JSONObject event = new JSONObject();
                event.put("key", m.getKeys());
                try {
                    byte[] body = ("re: " + new String(m.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                    SendResult result = answers.send(MessageUtil.createReplyMessage(m, body), 10000);
                    event.put("event", "replied");
                    event.put("status", result.getSendStatus().name());
                    event.put("offsetMsgId", result.getOffsetMsgId());
                } catch (Exception trouble) {
                    event.put("event", "trouble");
                    event.put("error", String.valueOf(trouble));
                }
                emit(event);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        CONSUMERS.put(command.getString("member"), consumer);
    }

    /** Send a request and wait for the reply: by callback, since 5.3.3's other way returns when the request is sent. */
    static void request(JSONObject command, JSONObject done) throws Exception {
        byte[] body = command.getString("body").getBytes(StandardCharsets.UTF_8);
        Message m = new Message(command.getString("topic"), "TagA", command.getString("key"), body);
        long timeoutMs = command.getLongValue("timeoutMs");
        CompletableFuture<Message> arrived = new CompletableFuture<>();
        producer(10000).request(m, new RequestCallback() {
            @Override public void onSuccess(Message reply) {
                if (reply != null) arrived.complete(reply);
            }

            @Override public void onException(Throwable trouble) {
                arrived.completeExceptionally(trouble);
            }
        }, timeoutMs);
        Message reply = arrived.get(timeoutMs, TimeUnit.MILLISECONDS);
        done.put("body", new String(reply.getBody(), StandardCharsets.UTF_8));
        done.put("type", reply.getProperty("MSG_TYPE"));
        done.put("pushed", reply.getProperty("PUSH_REPLY_TIME") != null);
    }

    /** Asked as mqadmin asks: a consumer of the group would be a member, which gets queues and moves those of the others. */
    static void offsets(JSONObject command, JSONObject done) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("offsets" + command.getInteger("id"));
        admin.start();
        try {
            JSONObject queues = new JSONObject();
            for (var one : admin.examineConsumeStats(command.getString("group"), command.getString("topic")).getOffsetTable().entrySet()) {
                MessageQueue queue = one.getKey();
                queues.put("" + queue.getQueueId(),
                    new long[] {admin.minOffset(queue), admin.maxOffset(queue), one.getValue().getConsumerOffset()});
            }
            done.put("queues", queues);
        } finally {
            admin.shutdown();
        }
    }

    /** By key, by offset id ("id") when given. */
    static void query(JSONObject command, JSONObject done) throws Exception {
        DefaultMQProducer p = producer(10000);
        String topic = command.getString("topic");
        JSONArray found = new JSONArray();
        if (command.getString("msgId") != null) found.add(describe(p.viewMessage(topic, command.getString("msgId")), "found"));
        else
            for (MessageExt m : p.queryMessage(topic, command.getString("key"), 32, 0, System.currentTimeMillis() + 60000).getMessageList())
                found.add(describe(m, "found"));
        done.put("found", found);
    }
}
