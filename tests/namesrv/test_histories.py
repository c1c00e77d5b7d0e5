"""The route table in random histories, beside a slow and simple model."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.live import LiveBroker
from rmq.namesrv.routes import RouteTable
from rmq.wire.api.common import TopicConfigWrapper
from rmq.wire.api.register_body import RegisterBrokerBody
from rmq.wire.api.routes import BrokerIdentityHeader, RegisterBrokerHeader, RegisterBrokerReply
from tests.namesrv.histories import draw, failure, run, shortest
from tests.seeds import SEED

HISTORIES = 2000


class HistoryTests(SynchronousTestCase):
    def test_table_equals_model(self) -> None:
        """
        After any order of registrations, good-byes, closes, expiries and admin changes, every answer is the model's; no
        route holds an address whose broker is gone; no route changes without the version; and whoever heard just the
        events knows the same brokers and topics.
        """
        base = SEED
        print(f"\nHISTORIES seed {base}")
        for number in range(HISTORIES):
            wrong = failure(RouteTable, f"{base}-{number}")
            if wrong is not None:
                self.fail(wrong)

    def test_planted_faults_are_found(self) -> None:
        """Faults that Apache once had, and some that ours might have had, are found within a few hundred histories."""
        for faulty in (
            UnregisterAnybody,
            UnregisterFromAnywhere,
            FullOnlyIfChanged,
            CloseByAddress,
            OldConnectionCounts,
            ForgottenVersion,
            DigestKept,
            SilentEvent,
        ):
            found = next((seed for seed in range(1000) if run(faulty, *draw(seed)) is not None), None)
            self.assertIsNotNone(found, faulty.__name__)

    def test_failures_are_cut_down(self) -> None:
        """What is shown of a failing history still fails, and does not without any of its steps."""
        seed = next(seed for seed in range(1000) if run(UnregisterFromAnywhere, *draw(seed)) is not None)
        policy, steps = draw(seed)
        few = shortest(UnregisterFromAnywhere, policy, steps)
        self.assertLess(len(few), len(steps))
        self.assertIsNotNone(run(UnregisterFromAnywhere, policy, few))
        for index in range(len(few)):
            self.assertIsNone(run(UnregisterFromAnywhere, policy, few[:index] + few[index + 1 :]))
        self.assertIn(f"seed {seed}", failure(UnregisterFromAnywhere, seed) or "")


class UnregisterAnybody(RouteTable):
    """4.9: the id goes whatever address it has."""

    def unregister_broker(self, broker: BrokerIdentityHeader, **context: Any) -> bool:
        went = super().unregister_broker(broker, **context)
        holder = self._holder(broker.broker_name, broker.broker_id)
        if holder is not None and not went:
            self.topology.remove_addr(self.topology.groups[broker.broker_name], broker.broker_id)
        return went


class UnregisterFromAnywhere(RouteTable):
    """5.x: a good-bye counts however late it comes."""

    def unregister_broker(self, broker: BrokerIdentityHeader, **context: Any) -> bool:
        live = self._live.get((broker.broker_name, broker.broker_addr))
        if live is not None:
            broker.broker_id = live.broker_id
        return super().unregister_broker(broker, **{**context, "channel": object()})


class FullOnlyIfChanged(RouteTable):
    """4.9: a full registration behind a partial one of the same version adds nothing."""

    def register_broker(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, **context: Any
    ) -> RegisterBrokerReply:
        known = self._holder(header.broker_name, header.broker_id)
        version = body.topic_config_serialize_wrapper.data_version
        if known is not None and known.broker_addr == header.broker_addr and known.data_version == version:
            body = RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigWrapper(data_version=version))
        return super().register_broker(header, body, **context)


class CloseByAddress(RouteTable):
    """A broker goes with any connection that it ever used."""

    def register_broker(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, **context: Any
    ) -> RegisterBrokerReply:
        known = self._live.get((header.broker_name, header.broker_addr))
        if known is not None:
            context["channel"] = known.channel
        return super().register_broker(header, body, **context)


class OldConnectionCounts(RouteTable):
    """A late registration over an old connection takes the broker back to it."""

    def register_broker(
        self, header: RegisterBrokerHeader, body: RegisterBrokerBody, **context: Any
    ) -> RegisterBrokerReply:
        known = self._live.get((header.broker_name, header.broker_addr))
        if known is not None and self._connections.is_older(context["channel"], known.channel):
            self._connections.move(known, context["channel"])
        return super().register_broker(header, body, **context)


class ForgottenVersion(RouteTable):
    """A change that no memo would hear of."""

    def wipe_write_perm(self, broker_name: str, **context: Any) -> int:
        version = self.topology.version
        count = super().wipe_write_perm(broker_name, **context)
        self.topology.version = version
        return count


class DigestKept(RouteTable):
    """A deleted topic does not come back with the next registration."""

    def _forget_digests(self, group: Any) -> None:
        pass


class SilentEvent(RouteTable):
    """A broker that goes without a word."""

    def _leave(self, live: LiveBroker, *args: Any) -> bool:
        hears, self.on_event = self.on_event, None
        went = super()._leave(live, *args)
        self.on_event = hears
        return went
