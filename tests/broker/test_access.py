"""A broker that checks who asks, and what nobody may change over the network."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from twisted.trial.unittest import SynchronousTestCase

from rmq.broker.config import CONFIG_CLASSES
from rmq.broker.service import BrokerService, build_broker
from rmq.broker.tap import Options, setup_of
from rmq.remoting.access import ACCESS_CLASSES, AccessSetup
from rmq.remoting.aclconfig import AclConfig
from rmq.runtime.config import ConfigError, config_fields
from rmq.runtime.platform import Platform
from rmq.runtime.properties import format_properties, parse_properties
from rmq.runtime.tls.config import TlsConfig
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand
from rmq.wire.signing import Credentials
from tests.broker import harness
from tests.broker.harness import PORT, OneBroker, RawClient, pull_ext, send_ext
from tests.remoting.guarded import NEVER, documented, words

ACCOUNTS = b"""
accounts:
- {accessKey: operator, secretKey: abcdefg, admin: true}
- {accessKey: application, secretKey: abcdefg, topicPerms: [T=PUB]}
"""
TOPIC_T = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "5", "writeQueueNums": "5", "perm": "6"}
TOPIC_T |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
OPERATOR = Credentials(access_key="operator", secret_key="abcdefg")
APPLICATION = Credentials(access_key="application", secret_key="abcdefg")


class SecuredBroker(OneBroker):
    """A broker with accounts."""

    def build(self, platform: Platform) -> BrokerService:
        platform.disk.write_atomic("/plain_acl.yml", ACCOUNTS)
        access = AccessSetup(
            acl=AclConfig(acl_enable=True, acl_file="/plain_acl.yml"), tls=TlsConfig(server_key_password="geheim")
        )
        setup = attrs.evolve(harness.setup_of(self.values), access=access)
        return build_broker(platform, setup, host_address=self.node.address, host_name="host")


def signed(client: RawClient, who: Credentials, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
    command = RemotingCommand(code, ext_fields=ext, body=body or None)
    who.sign(command)
    return client.wait(client.send(command))


class AccountsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one = SecuredBroker()
        self.addCleanup(self.one.end)
        self.client = self.one.connect()

    def test_sends(self) -> None:
        """A send needs an account with the topic, on the quick way of sends as on the ordinary one."""
        answer = self.client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x")
        self.assertEqual(answer.code, ResponseCode.NO_PERMISSION)
        self.assertIn("No accessKey is configured", str(answer.remark))
        self.assertEqual(signed(self.client, APPLICATION, 310, send_ext("T"), b"x").code, 0)
        self.assertIn("topic U", str(signed(self.client, APPLICATION, 310, send_ext("U"), b"x").remark))
        self.assertEqual(signed(self.client, OPERATOR, 310, send_ext("U"), b"x").code, 0)

    def test_both_ports(self) -> None:
        """The VIP port asks the same."""
        vip = self.one.connect(PORT - 2)
        self.assertEqual(vip.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"x").code, ResponseCode.NO_PERMISSION)
        self.assertEqual(signed(vip, APPLICATION, 310, send_ext("T"), b"x").code, 0)

    def test_a_pull_that_waited(self) -> None:
        """A pull shows its account once, when it comes: what changes while it waits makes it no stranger."""
        for number, change in enumerate(("nothing", "the configuration", "the topic")):
            member = self.one.connect()
            signed(member, OPERATOR, 310, send_ext("T"), b"x")
            end = str(self.one.service.store.max_offset("T", 0))
            pull = RemotingCommand(11, ext_fields=pull_ext("T", offset=int(end), sys_flag=6))
            OPERATOR.sign(pull)
            opaque = member.send(pull)
            self.one.world.run_for(0.1)
            self.assertEqual(len(self.one.service.polls), 1)
            if number == 1:
                signed(self.client, OPERATOR, 25, {}, b"transactionCheckMax=7")
            elif number == 2:
                signed(self.client, OPERATOR, 17, TOPIC_T)
            signed(self.client, OPERATOR, 310, send_ext("T"), b"x")
            answer = member.wait(opaque)
            self.assertEqual((answer.code, answer.remark), (0, "FOUND"), change)

    def test_every_code(self) -> None:
        """No code is answered without an account, not even unknown ones."""
        for code in (*self.one.service.responders.codes(), 77_777):
            answer = self.client.ask(code, {"topic": "T", "consumerGroup": "G"}, b"{}")
            self.assertEqual(answer.code, ResponseCode.NO_PERMISSION, code)

    def test_secrets_stay_here(self) -> None:
        """The configuration that is shown holds no passwords."""
        answer = signed(self.client, OPERATOR, RequestCode.GET_BROKER_CONFIG, {})
        self.assertEqual(answer.code, 0)
        self.assertNotIn(b"geheim", answer.body or b"")


#: Written down by hand, as the next list: whoever adds a key decides into which of the two it goes.
PROTECTED = words(
    """
# where it listens and is found
listenPort bindAddress haListenPort brokerIP1 brokerIP2 metricsExporterType metricsPromExporterHost
metricsPromExporterPort
# whom it connects to
namesrvAddr haMasterAddress useTLS fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup controllerAddr
fetchControllerAddrByDnsLookup metricsGrpcExporterTarget metricsGrpcExporterHeader
# who may use it, and for how long in silence
haAllowedPeers haTlsEnable serverChannelMaxIdleTimeSeconds
# which role and name it has
brokerRole brokerId brokerName brokerClusterName duplicationEnable enableSlaveActingMaster enableRemoteEscape
enableControllerMode brokerElectionPriority enableDLegerCommitLog dLegerGroup dLegerPeers dLegerSelfId
preferredLeaderId allAckInSyncStateSet
# where files are, and which form they have
rocketmqHome brokerConfigPath storePathRootDir storePathCommitLog storePathDLedgerCommitLog
readOnlyCommitLogStorePaths dumpDir storeType configManagerVersion mappedFileSizeCommitLog mappedFileSizeConsumeQueue
enableConsumeQueueExt mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt maxHashSlotNum maxIndexNum
# which code Apache's broker loads or runs with them (CVE-2023-33246)
messageStorePlugIn filterServerNums
"""
)
CHANGEABLE = words(
    """
brokerPermission defaultTopicQueueNums autoCreateTopicEnable clusterTopicEnable brokerTopicEnable
autoCreateSubscriptionGroup msgTraceTopicName traceTopicEnable sendMessageThreadPoolNums
putMessageFutureThreadPoolNums pullMessageThreadPoolNums processReplyMessageThreadPoolNums queryMessageThreadPoolNums
adminBrokerThreadPoolNums clientManageThreadPoolNums consumerManageThreadPoolNums heartbeatThreadPoolNums
endTransactionThreadPoolNums flushConsumerOffsetInterval flushConsumerOffsetHistoryInterval rejectTransactionMessage
sendThreadPoolQueueCapacity putThreadPoolQueueCapacity pullThreadPoolQueueCapacity replyThreadPoolQueueCapacity
queryThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity consumerManagerThreadPoolQueueCapacity
heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity longPollingEnable shortPollingTimeMills
notifyConsumerIdsChangedEnable highSpeedMode commercialEnable commercialTimerCount commercialTransCount
commercialBigCount commercialBaseCount transferMsgByHeap maxDelayTime regionId registerBrokerTimeoutMills
slaveOffsetsToMaster slaveReadEnable disableConsumeIfConsumerReadSlowly consumerFallbehindThreshold
brokerFastFailureEnable waitTimeMillsInSendQueue waitTimeMillsInPullQueue waitTimeMillsInHeartbeatQueue
waitTimeMillsInTransactionQueue startAcceptSendRequestTimeStamp traceOn enableCalcFilterBitMap
expectConsumerNumUseFilter maxErrorRateOfBloomFilter filterDataCleanTimeSpan filterSupportRetry enablePropertyFilter
compressedRegister forceRegister registerNameServerPeriod transactionTimeOut transactionCheckMax
transactionCheckInterval storeReplyMessageEnable enableDetailStat autoDeleteUnusedStats isolateLogEnable
serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue
serverAsyncSemaphoreValue serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark
writeBufferLowWaterMark serverSocketBacklog serverPooledByteBufAllocatorEnable serverNettyWorkerGroupEnable
useEpollNativeSelector
clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue clientAsyncSemaphoreValue
connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout
flushDiskType maxMessageSize syncFlushTimeout slaveTimeout osPageCacheBusyTimeOutMills messageDelayLevel
flushIntervalCommitLog flushCommitLogLeastPages flushCommitLogThoroughInterval flushIntervalConsumeQueue
flushConsumeQueueThoroughInterval messageIndexEnable maxMsgsNumBatch messageIndexSafe
maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk
maxTransferCountOnMessageInDisk accessMessageInMemoryMaxRatio maxFilterMessageSize offsetCheckInSlave
defaultQueryMaxNum checkCRCOnRecover cleanResourceInterval deleteWhen fileReservedTime diskMaxUsedSpaceRatio
diskSpaceWarningLevelRatio diskSpaceCleanForciblyRatio cleanFileForciblyEnable deleteFileBatchMax
haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize haTransferFlushedOnly haAckAfterFlush
haSlaveFallbehindMax haMaxTimeSlaveNotCatchup
inSyncReplicas flushDelayOffsetInterval commitIntervalCommitLog useReentrantLockWhenPutMessage
flushCommitLogTimed deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly
redeleteHangedFileInterval putMsgIndexHightWater commitCommitLogLeastPages flushLeastPagesWhenWarmMapedFile
flushConsumeQueueLeastPages commitCommitLogThoroughInterval warmMapedFileEnable debugLockEnable diskFallRecorded
transientStorePoolEnable transientStorePoolSize fastFailIfNoBufferInStorePool enableBatchPush
enableScheduleMessageStats enableLmq enableMultiDispatch maxLmqConsumeQueueNum enableScheduleAsyncDeliver
scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked timerWheelEnable
recoverConcurrently litePullMessageThreadPoolNums ackMessageThreadPoolNums loadBalanceProcessorThreadPoolNums
recoverThreadPoolNums litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity adminBrokerThreadPoolQueueCapacity
loadBalanceThreadPoolQueueCapacity commercialSizePerMsg accountStatsEnable accountStatsPrintZeroValues
maxStatsIdleTimeInMinutes sendHeartbeatTimeoutMillis waitTimeMillsInLitePullQueue waitTimeMillsInAckQueue
waitTimeMillsInAdminBrokerQueue rejectPullConsumerEnable updateNameServerAddrPeriod brokerHeartbeatInterval
brokerNotActiveTimeoutMillis enableNetWorkFlowControl enableBroadcastOffsetStore broadcastOffsetExpireSecond
broadcastOffsetExpireMaxSecond popPollingSize popPollingMapSize maxPopPollingSize reviveQueueNum reviveInterval
reviveMaxSlow reviveScanTime enableSkipLongAwaitingAck reviveAckWaitMs enablePopLog enablePopBufferMerge
popCkStayBufferTime popCkStayBufferTimeOut popCkMaxBufferSize popCkOffsetMaxQueueSize enablePopBatchAck
popLongPollingForceNotifyInterval enableNotifyBeforePopCalculateLag enableNotifyAfterPopOrderLockRelease
initPopOffsetByCheckMsgInMem retrieveMessageFromPopRetryTopicV1 enableRetryTopicV2 popFromRetryProbability
popConsumerFSServiceInit popConsumerKVServiceLog popConsumerKVServiceInit popConsumerKVServiceEnable
popReviveMaxReturnSizePerRead popReviveMaxAttemptTimes realTimeNotifyConsumerChange litePullMessageEnable
syncBrokerMemberGroupPeriod loadBalancePollNameServerInterval cleanOfflineBrokerInterval serverLoadBalancerEnable
defaultMessageRequestMode defaultPopShareQueueNum transactionMetricFlushInterval transactionOpMsgMaxSize
transactionOpBatchInterval forwardTimeout skipPreOnline asyncSendEnable useServerSideResetOffset
consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep lockInStrictMode compatibleWithOldNameSrv
syncBrokerMetadataPeriod checkSyncStateSetPeriod syncControllerMetadataPeriod controllerHeartBeatTimeoutMills
validateSystemTopicWhenUpdateTopic useStaticSubscription metricsOtelCardinalityLimit metricGrpcExporterTimeOutInMills
metricGrpcExporterIntervalInMills metricLoggingExporterIntervalInMills metricsLabel metricsInDelta
channelExpiredTimeout subscriptionExpiredTimeout estimateAccumulation coldCtrStrategyEnable usePIDColdCtrStrategy
cgColdReadThreshold globalColdReadThreshold fetchNamesrvAddrInterval popResponseReturnActualRetryTopic
enableSingleTopicRegister enableMixedMessageType enableSplitRegistration popInflightMessageThreshold
enablePopMessageThreshold enableFastChannelEventProcess printChannelGroups printChannelGroupsMinNum
splitRegistrationSize skipWhenCKRePutReachMaxTimes appendAckAsync appendCkAsync clearRetryTopicWhenDeleteTopic
enableLmqStats allowRecallWhenBrokerNotWriteable recallMessageEnable enableRegisterProducer enableCreateSysGroup
"""
)


class DenyListTests(SynchronousTestCase):
    def start(self, values: dict[str, str] | None = None) -> None:
        self.one = OneBroker(values)
        self.addCleanup(self.one.end)
        self.one.service.settings.path = "/broker.conf"
        self.one.node.disk.write_atomic("/broker.conf", b"# mine\nbrokerName=broker-a\n")
        self.client = self.one.connect()

    def update(self, changes: Mapping[str, str]) -> RemotingCommand:
        return self.client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=format_properties(changes).encode())

    def shown(self) -> dict[str, str]:
        return parse_properties((self.client.ask(RequestCode.GET_BROKER_CONFIG).body or b"").decode(), "answer")

    def file(self) -> dict[str, str]:
        return parse_properties(self.one.node.disk.read_whole("/broker.conf").decode(), "file")

    def test_protected(self) -> None:
        """No request changes who gets in, where files are, or what this broker is, nor anything beside such a key."""
        for black_list in ("configBlackList;brokerConfigPath", "", "regionId"):
            self.start({"configBlackList": black_list})
            before = self.shown()
            for key in [*PROTECTED, *NEVER, *filter(None, black_list.split(";"))]:
                answer = self.update({"brokerPermission": "4", key: before.get(key, "1")})
                text = f"Can not update config in black list. Only the configuration file changes {key}"
                self.assertEqual((answer.code, answer.remark), (ResponseCode.NO_PERMISSION, text))
            self.assertEqual(self.shown(), before)
            self.assertEqual(self.one.node.disk.read_whole("/broker.conf"), b"# mine\nbrokerName=broker-a\n")

    def test_every_key_named(self) -> None:
        """The answer names each key that was refused, so that an operator need not try them one by one."""
        self.start()
        answer = self.update({"haAllowedPeers": "10.0.0.0/8", "regionId": "x", "aclEnable": "false"})
        self.assertIn("changes aclEnable, haAllowedPeers", str(answer.remark))

    def test_changeable(self) -> None:
        """Every other key can be changed, as mqadmin does, and the file keeps it."""
        self.start()
        before = self.shown()
        for key in CHANGEABLE:
            self.assertEqual((key, self.update({key: before.get(key, "")}).code), (key, 0))
            self.assertEqual(self.file()[key], before.get(key, ""))
        self.assertEqual(self.shown(), before)

    def test_retention_counts_at_once(self) -> None:
        """Keys of age and space need no restart: one changes them when a disk fills."""
        self.start({"fileReservedTime": "72"})
        limits: list[tuple[int, str]] = []
        self.patch(
            self.one.service.store,
            "configure_retention",
            lambda config: limits.append((config.file_reserved_time, config.delete_when)),
        )
        self.assertEqual(self.update({"fileReservedTime": "1", "deleteWhen": "05"}).code, 0)
        self.assertNotEqual(self.update({"deleteWhen": "four"}).code, 0)
        self.assertEqual(limits, [(1, "05")])

    def test_every_key_is_in_one_list(self) -> None:
        """A new key can be changed over the network, or not, because somebody decided so."""
        keys = {field.key for cls in (*CONFIG_CLASSES, *ACCESS_CLASSES) for field in config_fields(cls)}
        listed = [*PROTECTED, *NEVER, *CHANGEABLE]
        self.assertEqual(sorted(listed), sorted(keys))

    def test_documented(self) -> None:
        """docs/security.md lists exactly the protected keys."""
        self.assertEqual(documented("broker"), sorted(PROTECTED))

    def test_white_list(self) -> None:
        """A key that configWhiteList names goes to the file and counts from the next start; the black list beats it."""
        self.start({"configWhiteList": "haAllowedPeers; brokerRole;dumpDir", "configBlackList": "dumpDir"})
        before = self.shown()
        self.assertEqual(self.update({"haAllowedPeers": "10.0.0.0/8"}).code, 0)
        self.assertEqual(self.file(), {"brokerName": "broker-a", "haAllowedPeers": "10.0.0.0/8"})
        self.assertEqual(self.shown(), before)
        for key in ("dumpDir", "haTlsEnable", "configWhiteList"):
            self.assertEqual(self.update({key: ""}).code, ResponseCode.NO_PERMISSION, key)
        self.assertIn("needs a brokerId above 0", str(self.update({"brokerRole": "SLAVE"}).remark))
        self.one.service.settings.path = None
        self.assertIn("haAllowedPeers. This broker has no", str(self.update({"haAllowedPeers": ""}).remark))

    def test_bad_white_list(self) -> None:
        """A list that could not work ends the start and names the key."""
        for key, why in (
            ("aclEnable", "never changed over the network"),
            ("configBlackList", "never changed over the network"),
            ("regionId", "no key that needs to be allowed"),
            ("haAlowedPeers", "no key that needs to be allowed"),
        ):
            error = self.assertRaises(ConfigError, OneBroker, {"configWhiteList": key})
            self.assertIn(f"{key} is {why}", str(error))

    def test_smuggled(self) -> None:
        """Neither a value with line ends nor an unknown key brings a protected key into the file."""
        self.start()
        value = "x\nhaAllowedPeers=0.0.0.0/0\r\nbindAddress=1.2.3.4"
        unknown = {"haAllowedPeers ": "x", "authenticationProvider": "x"}
        self.assertEqual(self.update({"regionId": value, **unknown}).code, 0)
        self.assertEqual(self.file(), {"brokerName": "broker-a", "regionId": value})

    def test_next_start(self) -> None:
        """No request leaves a file with which the broker would not start again."""
        self.start()
        for key, value in (("deleteWhen", "4am"), ("messageDelayLevel", "1s soon"), ("defaultTopicQueueNums", "-1")):
            answer = self.update({key: value, "regionId": "x"})
            self.assertEqual(answer.code, ResponseCode.SYSTEM_ERROR)
            self.assertIn(key, str(answer.remark))
            self.assertEqual(self.file(), {"brokerName": "broker-a"})


class OptionsTests(SynchronousTestCase):
    def test_keys(self) -> None:
        """The keys of access are options and keys of the file of -c."""
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write("tls.server.mode=enforcing\nserverMaxConnections=7\naclEnable=true\n")
        options = Options()
        options.parseOptions(["-c", path, "--tls.enable", "false", "--aclFile", "/x.yml"])
        self.assertEqual(options.unknown, {})
        setup = setup_of(options)
        self.assertEqual((setup.access.tls.mode, setup.access.tls.enable), ("enforcing", False))
        self.assertEqual(setup.access.limits.server_max_connections, 7)
        self.assertEqual((setup.access.acl.acl_enable, setup.access.acl.acl_file), (True, "/x.yml"))
        self.assertTrue(setup.broker.acl_enable)
