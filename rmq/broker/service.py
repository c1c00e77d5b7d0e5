"""
The wiring of a broker: its parts, made from the configuration, and the order of start and stop.

Java: BrokerController, BrokerStartup
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from twisted.application.service import MultiService, Service
from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from rmq.broker.config import BrokerSetup, resolve
from rmq.broker.consumerfilters import ConsumerFilters, compile_filter
from rmq.broker.consumerlanes import add_consumer_lanes
from rmq.broker.delays import Delays
from rmq.broker.dump import Dumps
from rmq.broker.filters import SQL92
from rmq.broker.flowcontrol import SAMPLE_S as FLOW_SAMPLE_S
from rmq.broker.flowcontrol import FlowControl
from rmq.broker.groups import SubscriptionGroupTable, default_groups
from rmq.broker.lanes import add_send_lane
from rmq.broker.locks import QueueLocks
from rmq.broker.longpoll import TICK_S as POLL_TICK_S
from rmq.broker.longpoll import LongPolls
from rmq.broker.metadata_sync import MetadataSync
from rmq.broker.offsets import ConsumerOffsetTable
from rmq.broker.pulllane import add_pull_lane
from rmq.broker.questionlanes import add_question_lanes
from rmq.broker.registration import Registration, RegistrationTerms
from rmq.broker.replylane import add_reply_lanes
from rmq.broker.responders.accounts import AccountResponder
from rmq.broker.responders.admin import AdminResponder
from rmq.broker.responders.clients import ClientResponder
from rmq.broker.responders.forwarding import ForwardingResponder
from rmq.broker.responders.offsets import OffsetResponder
from rmq.broker.responders.pulling import PullResponder
from rmq.broker.responders.queries import QueryResponder
from rmq.broker.responders.refused import REFUSED, WITHOUT_CONTROLLER
from rmq.broker.responders.replication import ReplicationResponder
from rmq.broker.responders.replies import ReplyResponder
from rmq.broker.responders.sendback import SendBackResponder
from rmq.broker.responders.sending import SendResponder
from rmq.broker.responders.topics import TopicResponder
from rmq.broker.responders.transactions import TransactionResponder
from rmq.broker.sessions import ChangeNotices, ConsumerGroups, Heartbeats, ProducerGroups
from rmq.broker.settings import Settings
from rmq.broker.stats import MINUTE_STEP_MS, BrokerStats, PutTimes
from rmq.broker.topics import TIMER_TOPIC, TopicTable, default_topics, hidden_topics
from rmq.broker.transactions import TransactionChecks
from rmq.broker.waitinglanes import add_waiting_lanes
from rmq.ha.service import HAService, Secured, secured_by
from rmq.remoting.access import Access
from rmq.remoting.aclconfig import BROKER_ADMIN_CODES
from rmq.remoting.answerlane import add_answer_lane
from rmq.remoting.channel import Channel
from rmq.remoting.client import RemotingClient
from rmq.remoting.responders import ResponderTable
from rmq.remoting.server import RemotingServer
from rmq.remoting.stats import RequestStats
from rmq.runtime.clock import Periodic, in_turns, moment, steady_ms
from rmq.runtime.config import ConfigError
from rmq.runtime.disk.error import DiskError
from rmq.runtime.platform import Platform
from rmq.runtime.tls.config import TlsMode, resolve_tls
from rmq.runtime.tls.context import ClientTls
from rmq.store.dispatch import delay_levels
from rmq.store.store import MessageStore
from rmq.wire.api.common import TopicConfigWrapper
from rmq.wire.codes import RequestCode
from rmq.wire.compiled import PURE_PYTHON
from rmq.wire.record import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from rmq.broker.elected.role import ElectedRole

VIP_PORT_DISTANCE = 2
#: Java: ClientHousekeepingService
SESSION_SCAN_S = 10.0
STATS_SAMPLE_S = 1.0
COUNTER_SAMPLE_S = MINUTE_STEP_MS / 1000
PUT_TIMES_SAMPLE_S = 60.0
FIRST_PERSIST_S = 10.0
#: topics that a warning names
HIDDEN_NAMED = 20
#: Java: BrokerController#initialize
FILTER_PERSIST_S = 10.0
OFFSET_CLEAN_S = 600.0
#: after so long Apache's brokers and the audit find what was created in the files
FOLD_S = 5.0
#: a start waits at most this long for the NameServers before it reports that the broker runs
BOOT_LINE_PATIENCE_S = 6.0


class BrokerService(MultiService):
    """
    A broker; made by :func:`build_broker`.

    ``elected`` is the role that a controller gave it. ``announce`` is called with Apache's boot line. After a failed
    fsync ``on_fatal`` is called with the reason and has to end the process; without it the reactor is stopped.
    """

    _log = Logger()

    def __init__(
        self,
        platform: Platform,
        setup: BrokerSetup,
        *,
        announce: Callable[[str], object] | None = None,
        on_fatal: Callable[[str], object] | None = None,
        config_path: str | None = None,
        elected: ElectedRole | None = None,
    ) -> None:
        super().__init__()
        self.setup = setup
        self._elected = elected
        self._platform = platform
        self.clock = clock = platform.reactor
        self.boot_ms = steady_ms(clock)
        self._announce = announce
        self._on_fatal = on_fatal or (lambda _: platform.reactor.stop())
        self._boot_timer: IDelayedCall | None = None
        disk, broker = platform.disk, setup.broker
        config_dir = os.path.join(setup.store.store_path_root_dir, "config")
        self.store = store = MessageStore(disk, clock, setup.store)
        self.settings = Settings(disk, setup, config_path, lambda changed: store.configure_retention(changed.store))
        lmq = setup.store.enable_lmq
        self.topics = TopicTable(disk, config_dir, clock, lmq=lmq)
        self.groups = SubscriptionGroupTable(
            disk, config_dir, clock, auto_create=broker.auto_create_subscription_group, is_slave=setup.is_slave, lmq=lmq
        )
        self.offsets = ConsumerOffsetTable(disk, config_dir, clock, lmq=lmq)
        self.filters = ConsumerFilters(
            disk,
            config_dir,
            clock,
            keep_ms=broker.filter_data_clean_time_span,
            error_percent=broker.max_error_rate_of_bloom_filter,
            expected_groups=broker.expect_consumer_num_use_filter,
        )
        self.notices = ChangeNotices(clock, enabled=broker.notify_consumer_ids_changed_enable)
        self.producers = ProducerGroups()
        self.heartbeats = Heartbeats()
        self.consumers = ConsumerGroups(changed=self.notices.soon, offline=self.filters.unregister)
        self.locks = QueueLocks()
        self.polls = LongPolls(self.store.max_offset)
        self.stats = BrokerStats(broker.broker_cluster_name, lambda: store.stored)
        self._delay_levels_ms = delay_levels(setup.store.message_delay_level)
        self.delays = Delays(disk, config_dir, clock, self.store, self._delay_levels_ms, self.stats)
        self.checks = TransactionChecks(self.settings, clock, self.store, self.offsets, self.topics, self.producers)
        self.access = Access(platform, setup.access, rocketmq_home=broker.rocketmq_home, admin_codes=BROKER_ADMIN_CODES)
        self.client = RemotingClient(platform, name="broker client", tls=self.access.client_tls, sign=self.access.sign)
        self.registration = Registration(
            self.client, RegistrationTerms.of(setup), self._registered_topics, clock, setup.namesrv_addrs
        )
        self.ha = HAService(
            platform,
            self.store,
            setup.store,
            host=setup.server.bind_address,
            role=setup.store.broker_role,
            secured=self._secured_replication() if setup.store.ha_tls_enable else None,
            term=None if elected is None else elected.term,
        )
        self.store.replication = self.ha
        self.flow = FlowControl(self.settings, clock, self.store)
        self._requests = RequestStats()
        self._put_times = PutTimes(self._requests)
        self.responders = self._make_responders()
        self.access.guard(self.responders)
        self.server = self._listener("broker", setup.server.listen_port, self.responders)
        vip_responders = self.responders.without(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        self.vip_server = self._listener("broker VIP", setup.server.listen_port - VIP_PORT_DISTANCE, vip_responders)
        self.flow.control(self.responders, vip_responders)
        self.metadata_sync = MetadataSync(
            self.client,
            clock,
            disk,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            config_dir=config_dir,
            own_addr=setup.address,
            messages=self.store,
            agrees_with_master=lambda: self.ha.agrees_with_master,
            offsets_to_master=broker.slave_offsets_to_master,
        )
        self.dumps = Dumps(setup, clock, disk, self.store, (self.topics, self.groups), self.offsets, self.delays)
        self._periodic = self._make_periodic()
        self._subscribe()
        #: in the order of their start; :meth:`stopService` has the order of the stop
        self._parts: list[Service] = [
            self.access,
            self.client,
            self.ha,
            self.server,
            self.vip_server,
            self.registration,
        ]
        if setup.is_slave:
            self._parts.append(self.metadata_sync)
        for part in self._parts:
            part.setServiceParent(self)

    # parts

    def _make_responders(self) -> ResponderTable:
        setup, settings, clock, rng = self.setup, self.settings, self.clock, self._platform.rng
        store, topics, groups, offsets, stats = self.store, self.topics, self.groups, self.offsets, self.stats
        consumers, producers, filters = self.consumers, self.producers, self.filters
        polls, delays = self.polls, self.delays
        levels = len(self._delay_levels_ms)
        sends = SendResponder(settings, clock, rng, store, topics, groups, stats, levels)
        ends = TransactionResponder(settings, clock, store, stats, levels)
        pulls = PullResponder(
            settings, clock, store, topics, groups, consumers, offsets, polls, stats, self.flow.cold_pulls
        )
        clients = ClientResponder(
            settings, clock, topics, groups, producers, consumers, filters, self.notices, self.locks, self.heartbeats
        )
        offset_responder = OffsetResponder(setup, clock, store, topics, groups, consumers, offsets, stats)
        topic_responder = TopicResponder(setup, store, topics, groups, consumers, offsets, polls, self.registration)
        replies = ReplyResponder(settings, clock, store, stats, producers, sends)
        queries = QueryResponder(settings, store, consumers, filters)
        table = ResponderTable(
            sends,
            replies,
            pulls,
            clients,
            offset_responder,
            queries,
            ForwardingResponder(setup, store, topics, consumers, offsets),
            SendBackResponder(settings, rng, store, topics, groups, stats, levels),
            ends,
            topic_responder,
            AdminResponder(
                settings,
                clock,
                self.boot_ms,
                store,
                topics,
                polls,
                delays,
                stats,
                self._put_times,
                self.registration,
                self.flow,
            ),
            AccountResponder(
                self.access.acl,
                cluster=setup.broker.broker_cluster_name,
                broker_name=setup.name,
                broker_addr=setup.address,
            ),
            ReplicationResponder(setup, self._platform.disk, topics, groups, offsets, delays, self.ha.status),
            *self._election_responders(),
            refused=REFUSED if self._elected is not None else {**REFUSED, **WITHOUT_CONTROLLER},
            stats=self._requests,
        )
        add_send_lane(table, sends, settings, clock, store, topics, stats)
        add_waiting_lanes(table, ends, settings, clock, rng, store, topics, groups, stats)
        add_answer_lane(table)
        add_reply_lanes(table, replies, sends, settings, clock, store, topics, producers, stats)
        add_consumer_lanes(table, offsets, consumers, clients, self.locks, clock, is_slave=setup.is_slave)
        add_question_lanes(table, store, offset_responder, topic_responder, queries, is_slave=setup.is_slave)
        add_pull_lane(table, pulls, settings, clock, store, topics, groups, consumers, offsets, polls, stats)
        return table

    def _registered_topics(self) -> TopicConfigWrapper:
        """
        Return the topics as NameServers get them: with the epoch, where a controller elects the master.

        A NameServer refuses a master of an older epoch than the one that it has: that one was replaced unnoticed.
        """
        topics = self.topics.snapshot()
        if self._elected is None:
            return topics
        version = msgspec.structs.replace(topics.data_version, state_version=self._elected.term.epoch)
        return msgspec.structs.replace(topics, data_version=version)

    def _election_responders(self) -> list[object]:
        elected = self._elected
        if elected is None:
            return []
        # Lazy import: needed with enableControllerMode only.
        from rmq.broker.responders.election import ElectionResponder

        return [ElectionResponder(self.setup, self.store, elected.term.broker_id, elected.epochs, elected.notified)]

    def _secured_replication(self) -> Secured:
        setup, disk = self.setup, self._platform.disk
        terms = resolve_tls(setup.access.tls, disk)
        if terms.mode is TlsMode.DISABLED:
            raise ConfigError("haTlsEnable=true needs TLS, but tls.server.mode=disabled or there is no certificate")
        return secured_by(self.access.tls, ClientTls(disk, self.clock, terms), self.clock)

    def _listener(self, name: str, port: int, responders: ResponderTable) -> RemotingServer:
        config = self.setup.server
        server = RemotingServer(
            self._platform,
            host=config.bind_address,
            port=port,
            responders=responders,
            idle_seconds=config.server_channel_max_idle_time_seconds,
            name=name,
            tls=self.access.tls,
            limits=self.access.limits,
            seats=self.access.seats,
        )
        server.on_channel_closed(self._channel_closed)
        return server

    def _make_periodic(self) -> list[Periodic]:
        clock = self.clock
        broker, store = self.setup.broker, self.setup.store
        jobs: list[tuple[str, float, float | None, Callable[[], object]]] = [
            (
                "persistence of consumer offsets",
                broker.flush_consumer_offset_interval / 1000,
                FIRST_PERSIST_S,
                self.offsets.persist,
            ),
            ("folding of topics and groups", FOLD_S, None, self._fold),
            ("flow control", FLOW_SAMPLE_S, None, self.flow.sample),
            ("persistence of consumer filters", FILTER_PERSIST_S, None, self.filters.persist),
            ("scan of silent clients", SESSION_SCAN_S, None, self._expire_sessions),
            ("long polls", POLL_TICK_S, None, lambda: in_turns(clock, self.polls.tick(steady_ms(clock)))),
            ("rates", STATS_SAMPLE_S, None, lambda: self.stats.sample_second(*moment(clock))),
            ("counters", COUNTER_SAMPLE_S, None, lambda: in_turns(clock, self.stats.sample_counters(steady_ms(clock)))),
            ("times of sends", PUT_TIMES_SAMPLE_S, None, self._put_times.sample),
        ]
        if not self.setup.is_slave:
            jobs.append(
                (
                    "persistence of delay offsets",
                    store.flush_delay_offset_interval / 1000,
                    FIRST_PERSIST_S,
                    self.delays.persist,
                )
            )
            interval_s = broker.transaction_check_interval / 1000
            jobs.append(("the check of transactions", interval_s, None, self.checks.run))
            jobs.append(("clean-up of consumer offsets", OFFSET_CLEAN_S, None, self._clean_offsets))
        return [Periodic(clock, every_s, call, name=name, first_s=first_s) for name, every_s, first_s, call in jobs]

    def _subscribe(self) -> None:
        """Connect the parts."""
        polls = self.polls
        self.store.on_arrival(polls.arrived, queues=polls.queues, together=polls.arrived_together)
        self.store.on_arrival(self.delays.arrived, topic=SCHEDULE_TOPIC)
        self.store.on_failure(self._store_failed)
        self.topics.on_created(self.registration.topic_created)
        if self._elected is not None and not self.setup.is_slave:
            self.store.on_appended(lambda: self.store.replicated(self.ha.confirmed_offset))
        if self.setup.is_slave:
            if self._elected is None:
                self.registration.on_master(self.follow)
            self.store.on_flushed(self.metadata_sync.log_flushed)
            self.store.on_queue_made(self.metadata_sync.queue_made)
        else:
            self.registration.on_order_topics(self.topics.set_order_topics)

    # start and stop

    def startService(self) -> None:
        """
        Load what is on disk, listen, register.

        Raises StoreError, StateFileError, DiskError or CannotListenError; then nothing runs and no lock is held.
        """
        Service.startService(self)
        started: list[Service] = []
        complete = False
        try:
            self._load()
            for part in self._parts:
                part.startService()
                started.append(part)
            complete = True
        finally:
            if not complete:
                self._abandon(started)
        if not self.setup.is_slave:
            self.delays.start()
            self.checks.start()
        for periodic in self._periodic:
            periodic.start()
        self._await_name_servers()

    def _load(self) -> None:
        """Java: BrokerController#initialize"""
        self._log.info(
            "the store runs {how}",
            how="with the compiled module rmq.store._record"
            if self.store.is_compiled
            else f"in pure Python: rmq.store._record is not compiled, or switched off by {PURE_PYTHON}",
        )
        self.store.load()
        if self._elected is not None:
            self._elected.loaded(self.store.end_offset)
        self.topics.load()
        self.groups.load()
        self.filters.load()
        if self.setup.broker.enable_property_filter:
            compile_filter(SQL92, "TRUE")  # loads the parser now: it takes 0.1 s, and a heartbeat would wait
        self.offsets.load()
        self.offsets.load_own(is_slave=self.setup.is_slave)
        if not self.setup.is_slave:
            self.delays.load()
        self.topics.add_missing(default_topics(self.setup))
        if not self.setup.is_slave:
            self._warn_of_hidden_messages()
            self._warn_of_timer_messages()
        self.groups.add_missing(default_groups())
        self.store.start()

    def _warn_of_hidden_messages(self) -> None:
        """Name topics with messages that consumers cannot read, since the table of topics lacks them."""
        self.topics.hidden = hidden = hidden_topics(self.store.queues(), self.topics)
        for name in sorted(hidden)[:HIDDEN_NAMED]:
            self._log.warn(
                "the store has {queues} queues of topic {topic}, which topics.json lacks, so nobody can read their "
                "messages. If it was made shortly before the master was lost, `rmq-admin topic create {topic} "
                "--queues {queues}` shows them; if it was deleted, `rmq-admin broker clean-topics` removes them",
                topic=name,
                queues=hidden[name],
            )
        if len(hidden) > HIDDEN_NAMED:
            self._log.warn(
                "the same holds for {count} more topics that have queues and that topics.json lacks",
                count=len(hidden) - HIDDEN_NAMED,
            )

    def _warn_of_timer_messages(self) -> None:
        """Say that a store of 5.x has messages that nobody will deliver."""
        count = self.store.max_offset(TIMER_TOPIC, 0) - self.store.min_offset(TIMER_TOPIC, 0)
        if count > 0:
            self._log.warn(
                "the store has {count} timer messages of RocketMQ 5.x ({topic}). This broker delivers none of them: "
                "let Apache's broker deliver those that still wait before this one takes the store",
                count=count,
                topic=TIMER_TOPIC,
            )

    def _abandon(self, started: list[Service]) -> None:
        """End a start that failed."""
        Service.stopService(self)
        ending = [maybeDeferred(part.stopService) for part in reversed(started)]
        ending.append(maybeDeferred(self.store.abandon))
        DeferredList(ending, consumeErrors=True)

    def stopService(self) -> Deferred[None]:
        """
        Unregister, stop listening, save everything, close the store; fires when all of that is done.

        A step that fails is logged, and the next step follows.
        """
        Service.stopService(self)
        self._forget_boot_timer()
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await self._step("unregistering", self.registration.stopService)
        self.delays.stop()
        self.checks.stop()
        self.notices.stop()
        await self._step("ending the dump that is being made", self.dumps.stop)
        await self._step("ending long polls", self.polls.stop)
        for server in (self.server, self.vip_server):
            await self._step(f"closing {server.name}", server.stopService)
        for periodic in self._periodic:
            await self._step(f"ending {periodic.name}", periodic.stop)
        if self.setup.is_slave:
            await self._step("ending metadata synchronisation", self.metadata_sync.stopService)
        await self._step("ending replication", self.ha.stopService)
        await self._step("writing topics", self.topics.fold)
        await self._step("writing groups", self.groups.fold)
        await self._step("writing consumer filters", self.filters.persist)
        await self._step("writing consumer offsets", self.offsets.persist)
        delays = self.metadata_sync.write_delay_offsets if self.setup.is_slave else self.delays.persist
        await self._step("writing delay offsets", delays)
        await self._step("closing the store", self.store.stop)
        await self._step("closing client connections", self.client.stopService)
        await self._step("forgetting certificates and accounts", self.access.stopService)
        self._log.info("broker {name} at {address} has stopped", name=self.setup.name, address=self.setup.address)

    async def _step(self, what: str, call: Callable[[], object]) -> None:
        def failed(failure: Failure) -> None:
            self._log.failure("{what} failed while stopping", failure, what=what)

        await maybeDeferred(call).addErrback(failed)

    def _await_name_servers(self) -> None:
        """
        Announce that the broker runs, once the NameServers have answered, timed out or take too long.

        Never before the reactor runs: until then SIGTERM kills instead of stopping.
        """
        has_any = bool(self.setup.namesrv_addrs)
        self._boot_timer = self.clock.callLater(BOOT_LINE_PATIENCE_S if has_any else 0, self._say_boot_line)
        if has_any:
            self.registration.first_round.addBoth(lambda _: self._say_boot_line())

    def _say_boot_line(self) -> None:
        if self._boot_timer is None:
            return
        self._forget_boot_timer()
        self._log.info("{line}", line=self.boot_line)
        if self._announce is not None:
            self._announce(self.boot_line)

    def _forget_boot_timer(self) -> None:
        timer, self._boot_timer = self._boot_timer, None
        if timer is not None and timer.active():
            timer.cancel()

    @property
    def boot_line(self) -> str:
        """Java: BrokerStartup#start"""
        setup = self.setup
        line = f"The broker[{setup.name}, {setup.address}] boot success. serializeType=JSON"
        return f"{line} and name server is {setup.broker.namesrv_addr}" if setup.namesrv_addrs else line

    # events

    def _channel_closed(self, channel: Channel, _reason: str) -> None:
        self.producers.channel_closed(channel)
        self.consumers.channel_closed(channel)
        self.heartbeats.channel_closed(channel)
        self.polls.channel_closed(channel)

    def _clean_offsets(self) -> None:
        """Forget the offsets of topics that are nowhere: not in the table, not in the store, and nobody subscribes."""
        unknown = {topic for topic in self.offsets.topics() if self.topics.get(topic) is None}
        if unknown:
            unknown -= {topic for topic, _ in self.store.queues()} | self.consumers.subscribed_topics()
        gone = self.offsets.remove_topics(unknown)
        if gone:
            self._log.info("consumer offsets of topics that do not exist were removed: {topics}", topics=gone)

    async def _fold(self) -> None:
        for table in (self.topics, self.groups):
            with suppress(DiskError):  # in the log
                await table.fold()

    def _expire_sessions(self) -> None:
        now = steady_ms(self.clock)
        for member in (*self.producers.expire(now), *self.consumers.expire(now)):
            self._log.warn(
                "client {client_id} at {peer} expired: no heartbeat for {silent_ms} ms",
                client_id=member.client_id,
                peer=member.channel.peer,
                silent_ms=now - member.last_heard_ms,
            )
            member.channel.close("expired: no heartbeat")
        self.locks.expire(now)

    def follow(self, master_addr: str | None, ha_addr: str | None) -> None:
        """Replicate from the master at these addresses; only on a running slave."""
        if ha_addr:
            self.ha.set_master(ha_addr)
        self.metadata_sync.set_master(master_addr)

    def _store_failed(self) -> None:
        """Stop: after a failed fsync acknowledged messages may be lost."""
        root = self.setup.store.store_path_root_dir
        text = f"an fsync of the store in {root} failed, acknowledged messages may be lost"
        self._log.critical("{text}; the broker stops", text=text)
        self._on_fatal(text)


def build_broker(
    platform: Platform,
    setup: BrokerSetup | None = None,
    *,
    host_address: str = "127.0.0.1",
    host_name: str = "localhost",
    look_up: Callable[[str], str] = str,
    announce: Callable[[str], object] | None = None,
    on_fatal: Callable[[str], object] | None = None,
    config_path: str | None = None,
    service: type[BrokerService] = BrokerService,
) -> BrokerService:
    """
    Return a broker that is ready to start; nothing is read or opened before that.

    ``host_address`` and ``host_name`` are the defaults of brokerIP1 and brokerName; ``look_up`` as for :func:`resolve`.
    ``config_path`` is the file that updateBrokerConfig rewrites. May be called many times in one process. Raises
    ConfigError for a configuration that cannot work.
    Java: BrokerStartup#createBrokerController
    """
    setup = resolve(setup or BrokerSetup(), host_address=host_address, host_name=host_name, look_up=look_up)
    return service(platform, setup, announce=announce, on_fatal=on_fatal, config_path=config_path)
