"""Replication: pauses after a failover, and ends."""

from __future__ import annotations

from types import SimpleNamespace

from twisted.logger import LogLevel, capturedLogs, formatEvent

from rmq.ha.output import abort
from rmq.ha.stream import encode_report
from tests.ha import net
from tests.ha.brokers import MASTER_PORT, OTHER_PORT, SEGMENT, ServiceCase


class NewMasterTests(ServiceCase):
    def test_a_new_master_is_dialled_like_the_first(self) -> None:
        """After minutes of failed dials a slave is pointed at another master, and tries that one every few seconds."""
        slave = self.slave(of=f"10.0.0.9:{MASTER_PORT}")
        self.net.run(250, step=0.5)
        slave.ha.set_master(f"10.0.0.9:{OTHER_PORT}")
        self.net.deliver()
        self.master(10, OTHER_PORT)
        self.net.run(6.5)
        self.assertEqual(slave.log.end_offset, 10)


class EndTests(ServiceCase):
    def test_nothing_is_sent_after_the_end(self) -> None:
        """A slave that leaves while it gets the log in slices leaves no slice behind that is cut for it."""
        self.patch(net, "HIGH_WATER_BYTES", 1 << 30)
        master = self.master(40 * SEGMENT)
        end, _ = self.peer()
        end.write(encode_report(1))
        data = bytes(end.unsent)
        end.unsent.clear()
        end.other.protocol.dataReceived(data)
        later = [call for call in self.net.getDelayedCalls() if call.getTime() <= self.net.seconds()]
        self.assertEqual(len(later), 1)
        end.other.protocol.drop("enough")
        self.assertFalse(later[0].active())
        self.assertEqual(len(master.ha.status().slaves), 0)

    def test_second_stop(self) -> None:
        """A stop of what has stopped, as after a failed start, is no error."""
        master = self.master(10)
        for _ in range(2):
            done = master.ha.stopService()
            self.net.deliver()
            self.successResultOf(done)

    def test_abort(self) -> None:
        """A connection that cannot be aborted is closed; one that was never made needs nothing."""
        ended: list[str] = []
        abort(None)
        abort(SimpleNamespace(loseConnection=lambda: ended.append("x")))
        self.assertEqual(ended, ["x"])


class ComplaintTests(ServiceCase):
    def test_a_port_check_is_no_refused_slave(self) -> None:
        """A monitor that only opens the HA port does not count among the refused slaves that an alarm watches."""
        master = self.master(100)
        _, peer = self.peer()
        self.net.run(25)
        self.assertTrue(peer.lost)
        self.assertEqual((master.ha.status().refused, master.ha.status().last_refusal), (0, ""))

    def test_what_needs_a_decision_is_an_error(self) -> None:
        """A slave ahead of its master is an error in the log, and a peer that talks nonsense a warning."""
        self.master(1000)
        slave = self.slave(of=None)
        slave.log.grow(b"y" * 1500)
        with capturedLogs() as events:
            slave.ha.set_master(f"10.0.0.9:{MASTER_PORT}")
            self.net.run(25)
            end, _ = self.peer()
            end.write(encode_report(-5))
            self.net.run(3)
        levels = [event["log_level"] for event in events if "dropped" in formatEvent(event)]
        self.assertEqual(levels, [LogLevel.error, LogLevel.warn])
