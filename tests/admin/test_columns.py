"""What is printed under the names of mqadmin; tests/real compares it with mqadmin itself."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from rmq.admin.columns import topic_route
from rmq.wire.api.routes import BrokerData, TopicRouteData


class ColumnsTests(SynchronousTestCase):
    def test_topic_route(self) -> None:
        """The route as mqadmin 4.9.7 prints it, which does not know of enableActingMaster."""
        group = BrokerData(broker_addrs={0: "a:1"}, broker_name="b", cluster="C", enable_acting_master=False)
        route = TopicRouteData(broker_datas=[group], filter_server_table={}, queue_datas=[])
        lines = [
            "{",
            '\t"brokerDatas":[',
            "\t\t{",
            '\t\t\t"brokerAddrs":{0:"a:1"',
            "\t\t\t},",
            '\t\t\t"brokerName":"b",',
        ]
        lines += ['\t\t\t"cluster":"C"', "\t\t}", "\t],", '\t"filterServerTable":{},', '\t"queueDatas":[]', "}"]
        self.assertEqual(topic_route(route).splitlines(), lines)
