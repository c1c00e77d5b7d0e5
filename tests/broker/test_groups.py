"""Subscription groups of a broker."""

from __future__ import annotations

from rmq.broker.groups import SubscriptionGroupTable, default_groups, is_group_name
from rmq.wire import fastjson
from rmq.wire.api.common import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from tests.broker.test_tables import TableCase


class GroupCase(TableCase):
    def groups(self, *, auto_create: bool = True) -> SubscriptionGroupTable:
        self.written()
        table = SubscriptionGroupTable(self.disk, self.directory, self.clock, auto_create=auto_create)
        self.tables.append(table)
        table.load()
        return table


class FindTests(GroupCase):
    def test_auto_creation(self) -> None:
        """An unknown group is made with Apache's defaults and is still there after a restart."""
        found = self.groups().find("g")
        assert found is not None
        self.assertEqual((found.retry_max_times, found.retry_queue_nums, found.consume_enable), (16, 1, True))
        self.assertEqual(self.groups(auto_create=False).find("g"), found)

    def test_no_auto_creation(self) -> None:
        """With autoCreateSubscriptionGroup off only system groups are made."""
        table = self.groups(auto_create=False)
        self.assertIsNone(table.find("g"))
        self.assertIsNotNone(table.find("CID_RMQ_SYS_TRANS"))
        self.assertEqual(table.data_version.counter, 1)

    def test_illegal_names(self) -> None:
        """Names that no group can have make no group."""
        table = self.groups()
        for name in ("", "a@b", "a b", "группа", "x" * 256):
            self.assertFalse(is_group_name(name))
            self.assertIsNone(table.find(name))
        self.assertEqual(len(table), 0)

    def test_full_disk(self) -> None:
        """A disk that refuses to be written does not keep a new group from consuming."""
        table = self.groups()
        self.break_disk("subscriptionGroup.json")
        self.assertIsNotNone(table.find("g"))
        self.assertIsNotNone(table.get("g"))


class DefaultGroupTests(GroupCase):
    def test_as_apache(self) -> None:
        """Every broker has these seven."""
        table = self.groups()
        table.add_missing(default_groups())
        self.assertEqual(
            table.names(),
            [
                "CID_ONS-HTTP-PROXY",
                "CID_ONSAPI_OWNER",
                "CID_ONSAPI_PERMISSION",
                "CID_ONSAPI_PULL",
                "FILTERSRV_CONSUMER",
                "SELF_TEST_C_GROUP",
                "TOOLS_CONSUMER",
            ],
        )

    def test_file(self) -> None:
        """The file has the members of Apache's."""
        self.groups().put(SubscriptionGroupConfig(group_name="g"))
        self.assertEqual(
            self.members("subscriptionGroup.json")["subscriptionGroupTable"]["g"],
            {
                "brokerId": 0,
                "consumeBroadcastEnable": True,
                "consumeEnable": True,
                "consumeFromMinEnable": True,
                "groupName": "g",
                "notifyConsumerIdsChangedEnable": True,
                "retryMaxTimes": 16,
                "retryQueueNums": 1,
                "whichBrokerWhenConsumeSlowly": 1,
            },
        )

    def test_replace(self) -> None:
        """A slave has its master's groups and version afterwards, and nothing else."""
        table = self.groups()
        table.find("own")
        version = DataVersion(counter=7, timestamp=8)
        config = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
        wrapper = SubscriptionGroupWrapper(data_version=version, subscription_group_table={"g": config})
        table.replace(fastjson.encode(wrapper))
        again = self.groups()
        self.assertEqual((again.names(), again.get("g"), again.data_version), (["g"], config, version))

    def test_a_group_without_its_name(self) -> None:
        """A group has the name under which it is listed, whatever its own entry says."""
        config = SubscriptionGroupConfig(group_name="other", retry_max_times=3)
        wrapper = SubscriptionGroupWrapper(data_version=DataVersion(counter=7), subscription_group_table={"g": config})
        table = self.groups()
        table.replace(fastjson.encode(wrapper))
        self.assertEqual(table.get("g"), SubscriptionGroupConfig(group_name="g", retry_max_times=3))
