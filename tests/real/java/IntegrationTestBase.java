package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdmin;
import org.junit.Assert;
import org.junit.internal.TextListener;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Stands in, earlier on the class path, for the class of Apache's integration tests that starts a cluster in the JVM.
 *
 * The controllers that it returns are never started: Apache's BaseConf reads the NameServer's port and the brokers'
 * names from them, and these are those of the cluster in the system properties "rmq.namesrv.port" and "rmq.brokers".
 * The main method runs test classes, and prints a line for every test that ended.
 */
public class IntegrationTestBase {
    private static final long TOPIC_DEADLINE_MS = 30_000;
    /** Apache waits 120 s for messages that a consumer of its own asked too late for; no test that passes needs 25 s. */
    private static final int CONSUME_DEADLINE_MS = 45_000;
    private static final String[] BROKERS = System.getProperty("rmq.brokers").split(",");
    private static int next = 0;

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(Integer.getInteger("rmq.namesrv.port"));
        return new NamesrvController(new NamesrvConfig(), server);
    }

    public static BrokerController createAndStartBroker(String namesrv) {
        BrokerConfig broker = new BrokerConfig();
        broker.setNamesrvAddr(namesrv);
        broker.setBrokerName(BROKERS[next++]);
        return new BrokerController(broker, new NettyServerConfig(), new NettyClientConfig(), new MessageStoreConfig());
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, int queues) {
        long deadline = System.currentTimeMillis() + TOPIC_DEADLINE_MS;
        while (!MQAdmin.createTopic(namesrv, cluster, topic, queues)) {
            Assert.assertTrue("topic " + topic + " was not created", System.currentTimeMillis() < deadline);
        }
        return true;
    }

    public static boolean initTopic(String topic, String namesrv, String cluster) {
        return initTopic(topic, namesrv, cluster, 8);
    }

    public static void main(String[] names) throws Exception {
        BaseConf.consumeTime = CONSUME_DEADLINE_MS;
        List<Class<?>> classes = new ArrayList<>();
        for (String name : names) {
            classes.add(Class.forName("org.apache.rocketmq.test." + name));
        }
        JUnitCore junit = new JUnitCore();
        junit.addListener(new TextListener(System.out) {
            @Override
            public void testStarted(Description test) {
            }
        });
        junit.addListener(new RunListener() {
            private long startedMs;
            private boolean failed;

            @Override
            public void testStarted(Description test) {
                startedMs = System.currentTimeMillis();
                failed = false;
            }

            @Override
            public void testFailure(Failure failure) {
                failed = true;
            }

            @Override
            public void testFinished(Description test) {
                System.out.printf("%n%s %s.%s in %d ms%n", failed ? "FAILED" : "PASSED",
                    test.getTestClass().getSimpleName(), test.getMethodName(), System.currentTimeMillis() - startedMs);
            }
        });
        System.exit(junit.run(classes.toArray(new Class<?>[0])).wasSuccessful() ? 0 : 1);
    }
}
