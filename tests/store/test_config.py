"""The store's configuration: Apache's keys, Apache's defaults."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.config import ConfigError, config_fields, load
from rmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq.store.dispatch import delay_levels
from rmq.store.messages import StoreError
from tests.store.support import Box, log_events

#: every key that 4.9.7 and 5.3.3 share
SHARED = """
storePathRootDir storePathCommitLog storePathDLedgerCommitLog readOnlyCommitLogStorePaths mappedFileSizeCommitLog
mappedFileSizeConsumeQueue enableConsumeQueueExt mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt
flushIntervalCommitLog commitIntervalCommitLog useReentrantLockWhenPutMessage flushCommitLogTimed
flushIntervalConsumeQueue cleanResourceInterval deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
destroyMapedFileIntervalForcibly redeleteHangedFileInterval deleteWhen diskMaxUsedSpaceRatio fileReservedTime
putMsgIndexHightWater maxMessageSize checkCRCOnRecover flushCommitLogLeastPages commitCommitLogLeastPages
flushLeastPagesWhenWarmMapedFile flushConsumeQueueLeastPages flushCommitLogThoroughInterval
commitCommitLogThoroughInterval flushConsumeQueueThoroughInterval maxTransferBytesOnMessageInMemory
maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInDisk maxTransferCountOnMessageInDisk
accessMessageInMemoryMaxRatio messageIndexEnable maxHashSlotNum maxIndexNum maxMsgsNumBatch messageIndexSafe
haListenPort haSendHeartbeatInterval haHousekeepingInterval haTransferBatchSize haMasterAddress haSlaveFallbehindMax
brokerRole flushDiskType syncFlushTimeout slaveTimeout messageDelayLevel flushDelayOffsetInterval
cleanFileForciblyEnable warmMapedFileEnable offsetCheckInSlave debugLockEnable duplicationEnable diskFallRecorded
osPageCacheBusyTimeOutMills defaultQueryMaxNum transientStorePoolEnable transientStorePoolSize
fastFailIfNoBufferInStorePool enableDLegerCommitLog dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId
enableBatchPush enableScheduleMessageStats enableLmq enableMultiDispatch maxLmqConsumeQueueNum
enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked
"""


class ConfigTests(SynchronousTestCase):
    def test_every_shared_key(self) -> None:
        """Every key of Apache's store configuration is accepted."""
        self.assertEqual(set(SHARED.split()) - {field.key for field in config_fields(StoreConfig)}, set())

    def test_values(self) -> None:
        """Text becomes values; enums are given by name."""
        values = {"flushDiskType": "SYNC_FLUSH", "brokerRole": "SLAVE", "mappedFileSizeConsumeQueue": "2001"}
        (config,) = load([StoreConfig], values, "file").configs
        self.assertIs(config.flush_disk_type, FlushDiskType.SYNC_FLUSH)
        self.assertIs(config.broker_role, BrokerRole.SLAVE)
        self.assertEqual(config.consume_queue_file_bytes, 2020)
        self.assertEqual(config.commit_log_dir, config.store_path_root_dir + "/commitlog")

    def test_bad_value(self) -> None:
        """A value that cannot be is refused with key and text."""
        for key, text in (("flushDiskType", "SOMETIMES"), ("maxIndexNum", "1"), ("syncFlushTimeout", "soon")):
            with self.assertRaises(ConfigError) as caught:
                load([StoreConfig], {key: text}, "file")
            self.assertIn(f"{key}='{text}'", str(caught.exception))

    def test_what_is_not_supported(self) -> None:
        """Settings that change nothing here are said to do so at the start."""
        self.assertEqual(StoreConfig().unsupported(), [])
        events = log_events(self)
        Box(transient_store_pool_enable=True, enable_d_leger_commit_log=True).open()
        told = [event["key"] for event in events if "is not supported" in event["log_format"]]
        self.assertEqual(told, ["transientStorePoolEnable", "enableDLegerCommitLog"])


class DelayLevelTests(SynchronousTestCase):
    def test_default(self) -> None:
        """The default has 18 levels."""
        levels = delay_levels(StoreConfig().message_delay_level)
        self.assertEqual((len(levels), levels[0], levels[4], levels[17]), (18, 1000, 60_000, 7_200_000))

    def test_nonsense(self) -> None:
        """A piece that is no delay is named."""
        for text in ("1s 5x", "s", "1.5s"):
            with self.assertRaises(StoreError) as caught:
                delay_levels(text)
            self.assertIn(repr(text), str(caught.exception))
