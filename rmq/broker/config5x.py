"""Broker keys that only RocketMQ 5.x knows: a properties file of a 5.x broker loads, and most have no effect."""

from __future__ import annotations

from typing import Any

import attrs

#: all keys, in the order in which `-p` prints them
_KEYS = """
    recoverConcurrently litePullMessageThreadPoolNums ackMessageThreadPoolNums loadBalanceProcessorThreadPoolNums
    recoverThreadPoolNums fetchNameSrvAddrByDnsLookup litePullThreadPoolQueueCapacity ackThreadPoolQueueCapacity
    adminBrokerThreadPoolQueueCapacity loadBalanceThreadPoolQueueCapacity commercialSizePerMsg accountStatsEnable
    accountStatsPrintZeroValues maxStatsIdleTimeInMinutes sendHeartbeatTimeoutMillis waitTimeMillsInLitePullQueue
    waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue rejectPullConsumerEnable updateNameServerAddrPeriod
    brokerHeartbeatInterval brokerNotActiveTimeoutMillis enableNetWorkFlowControl enableBroadcastOffsetStore
    broadcastOffsetExpireSecond broadcastOffsetExpireMaxSecond popPollingSize popPollingMapSize maxPopPollingSize
    reviveQueueNum reviveInterval reviveMaxSlow reviveScanTime enableSkipLongAwaitingAck reviveAckWaitMs
    enablePopLog enablePopBufferMerge popCkStayBufferTime popCkStayBufferTimeOut popCkMaxBufferSize
    popCkOffsetMaxQueueSize enablePopBatchAck popLongPollingForceNotifyInterval enableNotifyBeforePopCalculateLag
    enableNotifyAfterPopOrderLockRelease initPopOffsetByCheckMsgInMem retrieveMessageFromPopRetryTopicV1
    enableRetryTopicV2 popFromRetryProbability popConsumerFSServiceInit popConsumerKVServiceLog
    popConsumerKVServiceInit popConsumerKVServiceEnable popReviveMaxReturnSizePerRead popReviveMaxAttemptTimes
    realTimeNotifyConsumerChange litePullMessageEnable syncBrokerMemberGroupPeriod loadBalancePollNameServerInterval
    cleanOfflineBrokerInterval serverLoadBalancerEnable defaultMessageRequestMode defaultPopShareQueueNum
    transactionMetricFlushInterval transactionOpMsgMaxSize transactionOpBatchInterval forwardTimeout
    enableSlaveActingMaster enableRemoteEscape skipPreOnline asyncSendEnable useServerSideResetOffset
    consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep lockInStrictMode compatibleWithOldNameSrv
    fetchControllerAddrByDnsLookup syncBrokerMetadataPeriod checkSyncStateSetPeriod syncControllerMetadataPeriod
    validateSystemTopicWhenUpdateTopic useStaticSubscription metricsExporterType
    metricsOtelCardinalityLimit metricsGrpcExporterTarget metricsGrpcExporterHeader metricGrpcExporterTimeOutInMills
    metricGrpcExporterIntervalInMills metricLoggingExporterIntervalInMills metricsPromExporterPort
    metricsPromExporterHost metricsLabel metricsInDelta channelExpiredTimeout subscriptionExpiredTimeout
    estimateAccumulation coldCtrStrategyEnable usePIDColdCtrStrategy cgColdReadThreshold globalColdReadThreshold
    fetchNamesrvAddrInterval popResponseReturnActualRetryTopic enableSingleTopicRegister enableMixedMessageType
    enableSplitRegistration popInflightMessageThreshold enablePopMessageThreshold enableFastChannelEventProcess
    printChannelGroups printChannelGroupsMinNum splitRegistrationSize skipWhenCKRePutReachMaxTimes appendAckAsync
    appendCkAsync clearRetryTopicWhenDeleteTopic enableLmqStats configManagerVersion
    allowRecallWhenBrokerNotWriteable recallMessageEnable enableRegisterProducer enableCreateSysGroup
"""
#: those that no request changes over the network
_LOCAL = """
    fetchNameSrvAddrByDnsLookup enableSlaveActingMaster enableRemoteEscape fetchControllerAddrByDnsLookup
    metricsGrpcExporterTarget metricsGrpcExporterHeader
    metricsExporterType metricsPromExporterPort metricsPromExporterHost configManagerVersion
"""
#: those of MessageStoreConfig, NettyServerConfig, NettyClientConfig and AuthConfig, which a start reports as unknown
_FOREIGN = """
    accessMessageInMemoryHotRatio aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
    asyncLearner authConfigPath authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationMetadataProvider authorizationProvider
    authorizationStrategy authorizationWhitelist autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums
    bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval
    coldDataFlowControlEnable coldDataScanEnable commitLogForceSwapMapInterval commitLogSwapMapInterval
    commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize
    compactionScheduleInternal compactionThreadNum correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dataReadAheadEnable disableCallbackExecutor disableNettyWorkerGroup
    disappearTimeAfterStart dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread enableAsyncReput
    enableAutoInSyncReplicas enableBuildConsumeQueueConcurrently enableCleanExpiredOffset enableCompaction
    enableReconnectForGoAway enableRocksDBLog enableShutdownGracefully enabledAppendPropCRC forceVerifyPropCRC
    haFlowControlEnable haMaxGapNotInSync initAuthenticationUser
    innerClientAuthenticationCredentials logicQueueForceSwapMapInterval logicQueueSwapMapInterval
    logicQueueSwapMapReserveFileNum logicalDiskSpaceCleanForciblyThreshold mappedFileSizeTimerLog
    mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum
    maxChecksumRange maxConsumeQueueScan maxHaTransferByteInSecond maxOffsetMapSize
    maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles maxSlaveResendLength maxTopicLength
    memTableFlushIntervalMs migrateAuthFromV1Enabled minInSyncReplicas pullBatchMaxMessageCount
    putConsumeQueueDataByFileChannel putMessageTimeout readUnCommitted realTimePersistRocksDBConfig
    recheckReputOffsetFromCq replicasPerDiskPartition rocksdbCQDoubleWriteEnable rocksdbCompressionType
    rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
    scanAvailableNameSrv searchBcqByCacheEnable shutdownWaitTimeSeconds socksProxyConfig
    spinLockCollisionRetreatOptimalDegree statRocksDBCQIntervalSec statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum
    storePathBrokerIdentity storePathEpochFile syncFromLastFile syncMasterFlushOffsetWhenStartup
    timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics timerEnableRetryUntilSuccess
    timerFlushIntervalMs timerGetMessageThreadNum timerInterceptDelayLevel timerMaxDelaySec
    timerMetricSmallThreshold timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum
    timerRollWindowSlot timerSkipUnknownError timerStopEnqueue topicQueueLockNum totalReplicas
    travelCqFileNumWhenGetMessage useABSLock userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage
"""


#: what the broker reads: the attribute and what is printed of it
_READ = {
    "fetchNameSrvAddrByDnsLookup": ("fetch_name_srv_addr_by_dns_lookup", "5.x only, no effect"),
    "metricsExporterType": (
        "metrics_exporter_type",
        "PROM opens the port of --http as well; DISABLE (the default) does not",
    ),
    "metricsPromExporterPort": ("metrics_prom_exporter_port", "port of metricsExporterType=PROM, 5557 unless given"),
    "metricsPromExporterHost": (
        "metrics_prom_exporter_host",
        "address of metricsExporterType=PROM, brokerIP1 unless given",
    ),
    "metricsLabel": ("metrics_label", "labels that all metrics get, name:value,name:value"),
}


def _fields() -> dict[str, Any]:
    fields, local = {}, _LOCAL.split()
    for key in _KEYS.split():
        name, doc = _READ.get(key, (key, "5.x only, no effect"))
        fields[name] = attrs.field(default=None, metadata={"key": key, "doc": doc, "local": key in local})
    return fields


@attrs.frozen(kw_only=True, these=_fields())
class BrokerConfig5x:
    """
    Every value is kept as text, None when absent. Keys that the broker reads are declared here.

    Java: BrokerConfig, BrokerIdentity of 5.3.3
    """

    FOREIGN_KEYS = frozenset(_FOREIGN.split())

    fetch_name_srv_addr_by_dns_lookup: str | None = None
    metrics_exporter_type: str | None = None
    metrics_prom_exporter_port: str | None = None
    metrics_prom_exporter_host: str | None = None
    metrics_label: str | None = None


BrokerConfig5x.__annotations__.update({field.name: str | None for field in attrs.fields(BrokerConfig5x)})
