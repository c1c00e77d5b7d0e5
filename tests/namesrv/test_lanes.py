"""The short way of route look-ups beside the ordinary one."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv import lanes
from rmq.namesrv.lanes import RouteLane
from rmq.wire.api.routes import GET_ROUTEINFO_BY_TOPIC, REGISTER_BROKER
from rmq.wire.codes import SerializeType
from rmq.wire.command import RemotingCommand, decode_command, encode_command
from rmq.wire.frames import FrameDecoder
from tests.namesrv.talk import Talk
from tests.namesrv.test_responders import HEADER, body


class RouteLaneTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.talk = Talk(self.mktemp())
        service = self.talk.service
        self.lane = RouteLane(service.routes, service.settings)
        self.ordinary = service.responders
        self.ordinary.add_lane(GET_ROUTEINFO_BY_TOPIC.code, lambda command, channel: None)

    def request(self, topic: str | None = "T", **fields: object) -> RemotingCommand:
        ext = {} if topic is None else {"topic": topic}
        if accept := fields.pop("accept", None):
            ext["acceptStandardJsonOnly"] = str(accept)
        command = RemotingCommand(GET_ROUTEINFO_BY_TOPIC.code, ext_fields=ext)
        for name, value in fields.items():
            setattr(command, name, value)
        (frame,) = FrameDecoder().receive(encode_command(command))
        return decode_command(frame)

    def both(self, command: RemotingCommand) -> tuple[bytes | None, object]:
        return self.lane(command, self.talk.channel), self.ordinary.dispatch(command, self.talk.channel)

    def test_same_bytes(self) -> None:
        """In random histories of look-ups and changes the lane gives the ordinary way's bytes, or leaves it to it."""
        seed = random.SystemRandom().randrange(2**32)
        print(f"\nLANE seed {seed}")
        chance = random.Random(seed)
        routes = self.talk.service.routes
        taken = 0
        for number in range(3000):
            event = chance.random()
            if event < 0.05:
                names = chance.sample(("T", "тема", "%RETRY%g", 'quo"te', "U"), 2)
                self.talk.ask(REGISTER_BROKER, HEADER, body(*names, version=number))
            elif event < 0.07:
                routes.wipe_write_perm("a")
            elif event < 0.09:
                routes.channel_closed(self.talk.channel)
            command = self.request(
                chance.choice(("T", "тема", "%RETRY%g", 'quo"te', "U", "nowhere", None)),
                opaque=chance.choice((0, 1, 9, 10, 12345, 2**31 - 1, -1, -(2**31))),
                version=chance.choice((0, 317, 400, 401, 479)),
                accept=chance.choice((None, None, "true", "TRUE", "false", "1")),
                serialize_type=chance.choice((SerializeType.JSON,) * 4 + (SerializeType.ROCKETMQ,)),
            )
            short, ordinary = self.both(command)
            if short is not None:
                taken += 1
                self.assertEqual(short, ordinary, f"seed {seed}, {command!r}")
        self.assertGreater(taken, 500)

    def test_planted_difference_is_seen(self) -> None:
        """A reply kept beyond a change is not what the ordinary way says: the comparison above would see it."""
        self.talk.ask(REGISTER_BROKER, HEADER, body("T"))
        kept, ordinary = self.both(self.request())
        self.assertEqual(kept, ordinary)
        self.talk.service.routes.wipe_write_perm("a")
        self.assertNotEqual(kept, self.both(self.request())[1])
        self.assertEqual(*self.both(self.request()))

    def test_left_to_the_ordinary_way(self) -> None:
        """Not for the lane: binary headers, unknown topics, no topic, order configuration, waiting for service."""
        self.talk.ask(REGISTER_BROKER, HEADER, body("T"))
        for command in (
            self.request(serialize_type=SerializeType.ROCKETMQ),
            self.request("nowhere"),
            self.request(None),
        ):
            self.assertIsNone(self.lane(command, self.talk.channel))
        for config in ({"order_message_enable": True}, {"need_wait_for_service": True}):
            talk = Talk(self.mktemp(), **config)
            talk.ask(REGISTER_BROKER, HEADER, body("T"))
            lane = RouteLane(talk.service.routes, talk.service.settings)
            self.assertIsNone(lane(self.request(), talk.channel))

    def test_bound(self) -> None:
        """The memo never holds more than its bound, however many topics are asked for."""
        names = [f"topic-{number}" for number in range(50)]
        self.talk.ask(REGISTER_BROKER, HEADER, body(*names))
        self.patch(lanes, "MAX_MEMO_BYTES", 3000)
        for name in names:
            self.assertEqual(*self.both(self.request(name)))
            self.assertLessEqual(self.lane.memo_bytes, 3000)
        self.assertGreater(self.lane.memo_bytes, 0)

    def test_forgets_with_a_change(self) -> None:
        """Nothing is kept beyond a change of the table."""
        self.talk.ask(REGISTER_BROKER, HEADER, body("T"))
        self.both(self.request())
        self.assertGreater(self.lane.memo_bytes, 0)
        self.talk.service.routes.delete_topic("T")
        self.assertIsNone(self.both(self.request())[0])
        self.assertEqual(self.lane.memo_bytes, 0)
