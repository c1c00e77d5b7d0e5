"""The broker's configuration: Apache's keys and defaults, and what a broker refuses to start with."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import CONFIG_CLASSES, BrokerSetup, resolve, second_master, unreachable
from rmq.runtime.config import ConfigError, about_unknown, config_fields, load, parse_properties

#: getBrokerConfig of a running Apache 4.9.7 broker with few settings; thread pools, names, addresses and paths left out
APACHE_DEFAULTS = """\
shortPollingTimeMills=1000
serverSocketBacklog=1024
clientWorkerThreads=4
clientAsyncSemaphoreValue=65535
channelNotActiveInterval=60000
enableConsumeQueueExt=false
clientSocketSndBufSize=0
haHousekeepingInterval=20000
consumerManageThreadPoolNums=32
autoCreateTopicEnable=true
syncFlushTimeout=5000
clientChannelMaxIdleTimeSeconds=120
autoDeleteUnusedStats=false
defaultTopicQueueNums=8
clientSocketRcvBufSize=0
clientManagerThreadPoolQueueCapacity=1000000
writeBufferLowWaterMark=0
debugLockEnable=false
notifyConsumerIdsChangedEnable=true
enableDetailStat=true
brokerFastFailureEnable=true
transientStorePoolEnable=false
maxMessageSize=4194304
useReentrantLockWhenPutMessage=true
waitTimeMillsInTransactionQueue=3000
messageIndexEnable=true
commercialBaseCount=1
diskFallRecorded=true
scheduleAsyncDeliverMaxResendNum2Blocked=3
filterSupportRetry=false
brokerTopicEnable=true
destroyMapedFileIntervalForcibly=120000
offsetCheckInSlave=false
deleteConsumeQueueFilesInterval=100
flushCommitLogTimed=true
isolateLogEnable=false
haSlaveFallbehindMax=268435456
waitTimeMillsInSendQueue=200
defaultQueryMaxNum=32
clientCloseSocketIfTimeout=true
haSendHeartbeatInterval=5000
serverCallbackExecutorThreads=0
fetchNamesrvAddrByAddressServer=false
longPollingEnable=true
enableCalcFilterBitMap=false
redeleteHangedFileInterval=120000
transactionCheckMax=15
maxTransferBytesOnMessageInMemory=262144
enableScheduleMessageStats=true
flushCommitLogLeastPages=4
serverSocketRcvBufSize=0
putMsgIndexHightWater=600000
accessMessageInMemoryMaxRatio=40
slaveReadEnable=false
fileReservedTime=72
enableDLegerCommitLog=false
commercialTransCount=1
replyThreadPoolQueueCapacity=10000
consumerFallbehindThreshold=17179869184
maxErrorRateOfBloomFilter=20
storeReplyMessageEnable=true
startAcceptSendRequestTimeStamp=0
traceOn=true
flushDiskType=ASYNC_FLUSH
maxLmqConsumeQueueNum=20000
rejectTransactionMessage=false
flushIntervalConsumeQueue=1000
clientOnewaySemaphoreValue=65535
highSpeedMode=false
adminBrokerThreadPoolNums=16
flushConsumeQueueThoroughInterval=60000
sendThreadPoolQueueCapacity=10000
putThreadPoolQueueCapacity=10000
commercialTimerCount=1
pullThreadPoolQueueCapacity=100000
commitIntervalCommitLog=200
serverSocketSndBufSize=0
enableMultiDispatch=false
flushConsumeQueueLeastPages=2
mappedFileSizeConsumeQueue=6000000
transientStorePoolSize=5
writeBufferHighWaterMark=0
disableConsumeIfConsumerReadSlowly=false
serverChannelMaxIdleTimeSeconds=120
commercialBigCount=1
maxTransferBytesOnMessageInDisk=65536
serverOnewaySemaphoreValue=256
checkCRCOnRecover=true
forceRegister=true
transferMsgByHeap=true
flushConsumerOffsetInterval=5000
flushDelayOffsetInterval=10000
endTransactionPoolQueueCapacity=100000
waitTimeMillsInPullQueue=5000
deleteWhen=04
flushCommitLogThoroughInterval=10000
aclEnable=false
cleanResourceInterval=10000
serverAsyncSemaphoreValue=64
connectTimeoutMillis=3000
clientPooledByteBufAllocatorEnable=false
commitCommitLogThoroughInterval=200
useEpollNativeSelector=false
maxTransferCountOnMessageInMemory=32
serverPooledByteBufAllocatorEnable=true
autoCreateSubscriptionGroup=true
flushLeastPagesWhenWarmMapedFile=4096
filterDataCleanTimeSpan=86400000
warmMapedFileEnable=false
traceTopicEnable=false
clientManageThreadPoolNums=32
consumerManagerThreadPoolQueueCapacity=1000000
cleanFileForciblyEnable=true
serverSelectorThreads=3
enableScheduleAsyncDeliver=false
compressedRegister=false
enableLmq=false
commitCommitLogLeastPages=4
brokerRole=ASYNC_MASTER
brokerPermission=6
maxDelayTime=40
maxTransferCountOnMessageInDisk=8
filterServerNums=0
fastFailIfNoBufferInStorePool=false
useTLS=false
duplicationEnable=false
brokerId=0
registerBrokerTimeoutMills=6000
mappedFileSizeConsumeQueueExt=50331648
msgTraceTopicName=RMQ_SYS_TRACE_TOPIC
osPageCacheBusyTimeOutMills=1000
expectConsumerNumUseFilter=32
scheduleAsyncDeliverMaxPendingLimit=2000
serverWorkerThreads=8
slaveTimeout=3000
queryThreadPoolQueueCapacity=20000
maxMsgsNumBatch=64
flushConsumerOffsetHistoryInterval=60000
clusterTopicEnable=true
regionId=DefaultRegion
brokerClusterName=DefaultCluster
commercialEnable=true
haTransferBatchSize=32768
messageStorePlugIn=
waitTimeMillsInHeartbeatQueue=31000
messageIndexSafe=false
heartbeatThreadPoolQueueCapacity=50000
deleteCommitLogFilesInterval=100
"""


def setup_from(text: str) -> BrokerSetup:
    broker, server, client, store, extra = load(CONFIG_CLASSES, parse_properties(text, "test"), "test").configs
    return BrokerSetup(broker=broker, server=server, client=client, store=store, extra=extra)


def resolved(text: str) -> BrokerSetup:
    return resolve(setup_from(text), host_address="192.0.2.7", host_name="box")


class ApacheConfigTests(SynchronousTestCase):
    def test_apache_s_keys_are_known_with_apache_s_defaults(self) -> None:
        """Whoever moves from Apache finds every key that getBrokerConfig of 4.9.7 lists, and the same defaults."""
        values = parse_properties(APACHE_DEFAULTS, "Apache")
        loaded = load(CONFIG_CLASSES, values, "Apache")
        self.assertEqual(loaded.unknown, {})
        self.assertEqual(loaded.configs, load(CONFIG_CLASSES, {}, "nothing").configs)

    def test_a_planted_difference_is_seen(self) -> None:
        """The comparison above would notice a default that differs."""
        values = parse_properties(APACHE_DEFAULTS.replace("fileReservedTime=72", "fileReservedTime=48"), "Apache")
        self.assertNotEqual(load(CONFIG_CLASSES, values, "Apache").configs, load(CONFIG_CLASSES, {}, "nothing").configs)

    def test_file_of_a_5_x_broker_loads(self) -> None:
        """Keys that only 5.x has are no unknown keys."""
        text = "enableSlaveActingMaster=false\nbrokerHeartbeatInterval=1000\nskipWhenCKRePutReachMaxTimes=false\n"
        loaded = load(CONFIG_CLASSES, parse_properties(text, "5.x"), "5.x")
        self.assertEqual(loaded.unknown, {})

    def test_no_key_is_two_things(self) -> None:
        """A key that several classes have has one type, so one value can serve all."""
        kinds: dict[str, type] = {}
        for cls in CONFIG_CLASSES:
            for field in config_fields(cls):
                kind = kinds.setdefault(field.key, field.kind)
                self.assertIs(kind, field.kind, field.key)


class ResolveTests(SynchronousTestCase):
    def test_what_the_host_says(self) -> None:
        """Without names and addresses the host's own are used."""
        setup = resolved("")
        self.assertEqual((setup.name, setup.address, setup.ha_address), ("box", "192.0.2.7:10911", "192.0.2.7:10912"))

    def test_configured_names_win(self) -> None:
        """brokerIP2 is where slaves go, brokerIP1 where clients go."""
        setup = resolved("brokerName=b\nbrokerIP1=192.0.2.1\nbrokerIP2=192.0.2.2\nlisten\nlistenPort=20000\n")
        self.assertEqual((setup.name, setup.address, setup.ha_address), ("b", "192.0.2.1:20000", "192.0.2.2:20001"))

    def test_a_master_is_number_0(self) -> None:
        """A master's brokerId becomes 0, as with Apache."""
        self.assertEqual(resolved("brokerId=5\nbrokerRole=SYNC_MASTER\n").broker.broker_id, 0)

    def test_a_slave_needs_a_number(self) -> None:
        """A slave without a brokerId above 0 does not start; the error says which key."""
        error = self.assertRaises(ConfigError, resolved, "brokerRole=SLAVE\n")
        self.assertIn("brokerId", str(error))
        self.assertEqual(resolved("brokerRole=SLAVE\nbrokerId=3\n").broker.broker_id, 3)

    def test_unsafe_promises_are_refused(self) -> None:
        """Who asks for a controller or for RocksDB must not get a broker without."""
        for entry in (
            "enableControllerMode=true",
            "enableDLegerCommitLog=true",
            "storeType=defaultRocksDB",
        ):
            error = self.assertRaises(ConfigError, resolved, f"{entry}\n")
            self.assertIn(entry.partition("=")[0], str(error))
        resolved("storeType=default\n")

    def test_address_server(self) -> None:
        """Who relies on an address server must not get a broker that no NameServer knows; namesrvAddr comes first."""
        error = self.assertRaises(ConfigError, resolved, "fetchNamesrvAddrByAddressServer=true\n")
        self.assertIn("fetchNamesrvAddrByAddressServer", str(error))
        both = resolved("fetchNamesrvAddrByAddressServer=true\nnamesrvAddr=n:9876\n")
        self.assertEqual(both.namesrv_addrs, ["n:9876"])

    def test_keys_of_5x_are_no_typing_errors(self) -> None:
        """A key of 5.x that has no effect here is called that; no other key is suggested in its place."""
        for key in ("minInSyncReplicas", "authenticationProvider", "shutdownWaitTimeSeconds"):
            self.assertEqual(about_unknown(key, CONFIG_CLASSES), ": of RocketMQ 5.x, no effect here")
        self.assertEqual(about_unknown("inSyncReplica", CONFIG_CLASSES), "; did you mean inSyncReplicas?")

    def test_access(self) -> None:
        """Apache's aclEnable and useTLS, of BrokerConfig and NettyClientConfig, are those of the access setup."""
        access = resolved("aclEnable=true\nuseTLS=true\n").access
        self.assertTrue(access.acl.acl_enable)
        self.assertTrue(access.tls.enable)
        self.assertFalse(resolved("").access.acl.acl_enable)
        self.assertIsNone(resolved("").access.tls.enable)

    def test_host_names(self) -> None:
        """
        As with Apache brokerIP1 and brokerIP2 may be names: those are registered, message ids have the IP address.

        A name that this host does not know is an error of the start; Apache fails with each message.
        """
        hosts = {"broker-a.example": "192.0.2.9", "v6.example": "2001:db8::9", "ha.example": "192.0.2.10"}

        def look_up(host: str) -> str:
            if host not in hosts:
                raise OSError("Name or service not known")
            return hosts[host]

        def named(text: str) -> BrokerSetup:
            return resolve(setup_from(text), host_address="192.0.2.7", host_name="box", look_up=look_up)

        setup = named("brokerIP1=broker-a.example\nbrokerIP2=ha.example\n")
        self.assertEqual((setup.address, setup.ha_address), ("broker-a.example:10911", "ha.example:10912"))
        self.assertEqual(setup.store_host, (bytes([192, 0, 2, 9]), 10911))
        self.assertEqual(named("brokerIP1=broker-a.example\n").ha_address, "broker-a.example:10912")
        self.assertEqual(len(named("brokerIP1=v6.example\n").store_host[0]), 16)
        self.assertEqual(unreachable(setup), [])
        for key in ("brokerIP1", "brokerIP2"):
            error = self.assertRaises(ConfigError, named, f"{key}=broker-b.example\n")
            self.assertEqual(
                str(error),
                f"{key}='broker-b.example' is no IP address, and no name that this host knows: "
                "Name or service not known",
            )

    def test_brackets(self) -> None:
        """An IPv6 address in brackets, as it is before a port, is refused with what to write instead."""
        for key in ("brokerIP1", "brokerIP2", "bindAddress"):
            for host in ("[2001:db8::1]", "[2001:db8::1]:10911", "[2001:db8::1"):
                error = self.assertRaises(ConfigError, resolved, f"{key}={host}\n")
                self.assertEqual(str(error), f"{key}={host}: leave the brackets out: {key}=2001:db8::1")

    def test_texts_of_the_store(self) -> None:
        """Hours, delays, networks and the master's address are read before anything is made of them."""
        for entry in (
            "deleteWhen=zz",
            "messageDelayLevel=1s foo",
            "haAllowedPeers=10.0.0.0/8;all",
            "haMasterAddress=m",
        ):
            error = self.assertRaises(ConfigError, resolved, entry + "\n")
            self.assertTrue(str(error).startswith(entry.partition("=")[0]), error)
        fine = "deleteWhen=04;16\nmessageDelayLevel=1s 2d\nhaAllowedPeers=10.0.0.0/8\nhaMasterAddress=m:10912\n"
        self.assertEqual(resolved(fine).store.ha_master_address, "m:10912")

    def test_a_slave_of_itself(self) -> None:
        """It would be connected, in sync with itself, and replicate nothing."""
        for host in ("10.0.0.7", "localhost", "127.0.0.1"):
            text = f"brokerRole=SLAVE\nbrokerId=1\nbrokerIP1=10.0.0.7\nhaMasterAddress={host}:"
            error = self.assertRaises(ConfigError, resolved, f"{text}10912\n")
            self.assertIn("is the HA port of this slave itself", str(error))
            self.assertEqual(resolved(f"{text}20912\n").store.ha_master_address, f"{host}:20912")

    def test_second_master(self) -> None:
        """A number above 0 without the role of a slave is probably a slave whose role was forgotten."""
        for text in ("", "brokerId=0\n", "brokerRole=SLAVE\nbrokerId=1\n", "brokerRole=SYNC_MASTER\n"):
            self.assertIsNone(second_master(setup_from(text)), text)
        self.assertIn("brokerRole=SYNC_MASTER", second_master(setup_from("brokerRole=SYNC_MASTER\nbrokerId=2\n")) or "")

    def test_unreachable(self) -> None:
        """An address at which nothing listens would be registered, and each client would fail there."""
        for text in ("", "brokerIP1=10.0.0.1\n", "brokerIP1=::1\nbindAddress=::\n"):
            self.assertEqual(unreachable(setup_from(text)), [], text)
        for text, words in (
            ("brokerIP1=0.0.0.0\n", "can be dialled"),
            ("brokerIP2=::\n", "can be dialled"),
            ("brokerIP1=::1\n", "try bindAddress=::"),
        ):
            ((key, why),) = unreachable(setup_from(text))
            self.assertTrue(text.startswith(key) and words in why, why)

    def test_ipv6(self) -> None:
        """It is registered in brackets, as every client can dial it."""
        setup = resolved("brokerIP1=::1\nbrokerIP2=2001:db8::1\nlistenPort=10911\n")
        self.assertEqual((setup.address, setup.ha_address), ("[::1]:10911", "[2001:db8::1]:10912"))
        self.assertEqual(resolved("brokerIP1=10.0.0.1\n").address, "10.0.0.1:10911")

    def test_name_servers(self) -> None:
        """Blanks and empty items in the list do no harm."""
        setup = resolved("namesrvAddr= a:9876 ;;b:9876;\n")
        self.assertEqual(setup.namesrv_addrs, ["a:9876", "b:9876"])

    def test_dumps_lie_beside_the_store(self) -> None:
        """Dumps do not land inside the store; dumpDir moves them."""
        self.assertEqual(resolved("storePathRootDir=/x/store/\n").dump_dir, "/x/store-dumps")
        self.assertEqual(resolved("dumpDir=/y\n").dump_dir, "/y")

    def test_resolving_twice_changes_nothing(self) -> None:
        """A resolved configuration is final."""
        setup = resolved("brokerRole=SLAVE\nbrokerId=3\n")
        self.assertEqual(resolve(setup, host_address="10.0.0.1", host_name="other"), setup)
        self.assertIsNot(attrs.evolve(setup), setup)
