"""Spark takes one DefaultSource from each package named pyspark_*; this one is the source of consume queues."""

from pyspark_rocketmq.queues import ConsumeQueueSource as DefaultSource

__all__ = ["DefaultSource"]
