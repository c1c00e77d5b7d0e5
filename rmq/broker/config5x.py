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
    enableControllerMode controllerAddr fetchControllerAddrByDnsLookup syncBrokerMetadataPeriod
    checkSyncStateSetPeriod syncControllerMetadataPeriod controllerHeartBeatTimeoutMills
    validateSystemTopicWhenUpdateTopic brokerElectionPriority useStaticSubscription metricsExporterType
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
#: of the keys without effect those that no request changes over the network
_LOCAL = """
    fetchNameSrvAddrByDnsLookup enableSlaveActingMaster enableRemoteEscape controllerAddr
    fetchControllerAddrByDnsLookup brokerElectionPriority metricsGrpcExporterTarget metricsGrpcExporterHeader
    configManagerVersion
"""


def _key(key: str, doc: str = "5.x only, no effect", *, local: bool = False) -> Any:
    return attrs.field(default=None, metadata={"key": key, "doc": doc, "local": local})


def _each_key_once(cls: type, fields: list[attrs.Attribute[Any]]) -> list[attrs.Attribute[Any]]:
    """Let a field that the class declares take the place of the one in `_KEYS`."""
    return list({field.metadata["key"]: field for field in fields}.values())


_Keys: Any = attrs.make_class(
    "_Keys",
    {key: _key(key, local=key in _LOCAL.split()) for key in _KEYS.split()},
    frozen=True,
    kw_only=True,
    slots=True,
)
_Keys.__annotations__ = dict.fromkeys(_KEYS.split(), str | None)


@attrs.frozen(kw_only=True, field_transformer=_each_key_once)
class BrokerConfig5x(_Keys):  # type: ignore[misc]
    """
    Every value is kept as text, None when absent. Keys that the broker reads are declared here.

    Java: BrokerConfig, BrokerIdentity of 5.3.3
    """

    enable_controller_mode: str | None = _key("enableControllerMode", local=True)
    metrics_exporter_type: str | None = _key(
        "metricsExporterType", "PROM opens the port of --http as well; DISABLE (the default) does not", local=True
    )
    metrics_prom_exporter_port: str | None = _key(
        "metricsPromExporterPort", "port of metricsExporterType=PROM, 5557 unless given", local=True
    )
    metrics_prom_exporter_host: str | None = _key(
        "metricsPromExporterHost", "address of metricsExporterType=PROM, brokerIP1 unless given", local=True
    )
    metrics_label: str | None = _key("metricsLabel", "labels that all metrics get, name:value,name:value")
