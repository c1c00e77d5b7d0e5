"""Spark looks into packages named pyspark_* for a DefaultSource; that is all that this one is for."""

from pyspark_rocketmq.source import CommitLogSource as DefaultSource

__all__ = ["DefaultSource"]
