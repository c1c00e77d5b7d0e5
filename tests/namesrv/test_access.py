"""A NameServer that checks who administers it, and what nobody may change over the network."""

from __future__ import annotations

import os
import random

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from rmq.namesrv.config import CONFIG_CLASSES, NamesrvConfig, NamesrvSetup
from rmq.namesrv.responders import PATH_KEYS, PATH_REMARK
from rmq.namesrv.service import NamesrvService, build_namesrv
from rmq.namesrv.tap import Options, setup_of
from rmq.remoting.access import ACCESS_CLASSES, AccessSetup
from rmq.remoting.aclconfig import NAMESRV_ADMIN_CODES, AclConfig
from rmq.runtime.config import ConfigError, config_fields
from rmq.runtime.disk.files import RealDisk
from rmq.runtime.platform import Platform, dial_by_name
from rmq.runtime.properties import format_properties, parse_properties
from rmq.runtime.tls.config import TlsConfig
from rmq.wire.codes import RequestCode, ResponseCode
from rmq.wire.command import RemotingCommand
from rmq.wire.signing import Credentials
from tests.remoting.guarded import NEVER, documented, words
from tests.remoting.peer import Peer

ACCOUNTS = """
accounts:
- {accessKey: operator, secretKey: abcdefg, admin: true}
- {accessKey: application, secretKey: abcdefg}
"""
OPERATOR = Credentials(access_key="operator", secret_key="abcdefg")
APPLICATION = Credentials(access_key="application", secret_key="abcdefg")


class AccessCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = os.path.abspath(self.mktemp())
        os.makedirs(self.folder)
        self.reactor = MemoryReactorClock()
        self.disk = RealDisk(self.reactor)
        self.addCleanup(self.disk.close)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def start(self, access: AccessSetup, **config: str) -> Peer:
        """Start a NameServer with this access; a peer of it."""
        config = {
            "kv_config_path": self.path("kv.json"),
            "config_store_path": self.path("namesrv.properties"),
            **config,
        }
        setup = NamesrvSetup(namesrv=NamesrvConfig(**config), access=access)  # type: ignore[arg-type]
        platform = Platform(reactor=self.reactor, disk=self.disk, rng=random.Random(0), endpoint_factory=dial_by_name)
        self.service: NamesrvService = build_namesrv(platform, setup)
        self.service.startService()
        self.addCleanup(self.service.stopService)
        return Peer(self.service.responders, self.reactor)

    def accounts(self, text: str = ACCOUNTS) -> AccessSetup:
        with open(self.path("acl.yml"), "w", encoding="utf-8") as file:
            file.write(text)
        return AccessSetup(acl=AclConfig(acl_enable=True, acl_file=self.path("acl.yml")))


class AccountsTests(AccessCase):
    def ask(self, peer: Peer, code: int, who: Credentials | None = None, body: bytes | None = None) -> RemotingCommand:
        command = RemotingCommand(code, 7, ext_fields={"namespace": "n", "key": "k", "value": "v"}, body=body)
        if who is not None:
            who.sign(command)
        peer.tell(command)
        (answer,) = peer.received()
        return answer

    def test_administration(self) -> None:
        """What changes a NameServer needs an admin."""
        peer = self.start(self.accounts())
        for code in NAMESRV_ADMIN_CODES:
            for who in (None, APPLICATION):
                self.assertEqual(self.ask(peer, code, who).code, ResponseCode.NO_PERMISSION, code)
        self.assertEqual(self.ask(peer, RequestCode.PUT_KV_CONFIG, OPERATOR).code, 0)
        self.assertEqual(self.ask(peer, RequestCode.GET_NAMESRV_CONFIG, OPERATOR).code, 0)

    def test_everything_else(self) -> None:
        """What brokers and clients ask needs no account."""
        peer = self.start(self.accounts())
        for code in sorted(self.service.responders.codes() - NAMESRV_ADMIN_CODES):
            self.assertNotEqual(self.ask(peer, code, body=b"{}").code, ResponseCode.NO_PERMISSION, code)

    def test_bad_accounts(self) -> None:
        """Accounts that cannot be read stop the start, and nothing is left running."""
        self.assertRaises(ConfigError, self.start, self.accounts("accounts: ["))
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertFalse(self.service.running)


#: Written down by hand, as the next list: whoever adds a key decides into which of the two it goes.
PROTECTED = words(
    """
# where it listens and is found
listenPort bindAddress
# who may use it, and for how long in silence
serverChannelMaxIdleTimeSeconds
# which role it has
enableControllerInNamesrv controllerDLegerPeers jRaftInitConf
# where files are
rocketmqHome configStorePath kvConfigPath controllerStorePath
"""
)
CHANGEABLE = words(
    """
productEnvName clusterTest orderMessageEnable returnOrderTopicConfigToBroker clientRequestThreadPoolNums
defaultThreadPoolNums clientRequestThreadPoolQueueCapacity defaultThreadPoolQueueCapacity scanNotActiveBrokerInterval
unRegisterBrokerQueueCapacity supportActingMaster notifyMinBrokerIdChanged needWaitForService
deleteTopicWithBrokerRegistration enableAllTopicList enableTopicList waitSecondsForService
serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads serverOnewaySemaphoreValue
serverAsyncSemaphoreValue serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark
writeBufferLowWaterMark serverSocketBacklog serverPooledByteBufAllocatorEnable serverNettyWorkerGroupEnable
useEpollNativeSelector
enableShutdownGracefully shutdownWaitTimeSeconds
enableElectUncleanMaster notifyBrokerRoleChanged
"""
)


class DenyListTests(AccessCase):
    def update(self, peer: Peer, changes: dict[str, str]) -> RemotingCommand:
        return peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, format_properties(changes).encode())

    def shown(self, peer: Peer) -> dict[str, str]:
        return parse_properties((peer.ask(RequestCode.GET_NAMESRV_CONFIG).body or b"").decode(), "answer")

    def written(self) -> dict[str, str]:
        with open(self.path("namesrv.properties"), encoding="utf-8") as file:
            return parse_properties(file.read(), "written")

    def test_protected(self) -> None:
        """No request changes where files are or who gets in, nor anything beside such a key."""
        for black_list in ("configBlackList;configStorePath;kvConfigPath", "", "clusterTest"):
            peer = self.start(AccessSetup(), config_black_list=black_list)
            before = self.shown(peer)
            for key in [*PROTECTED, *NEVER, *filter(None, black_list.split(";"))]:
                answer = self.update(peer, {"productEnvName": "p", key: before.get(key, "1")})
                text = f"Can not update config in black list. Only the configuration file changes {key}"
                text = PATH_REMARK if key in PATH_KEYS else text
                self.assertEqual((answer.code, answer.remark), (ResponseCode.NO_PERMISSION, text))
            self.assertEqual(self.shown(peer), before)
            self.assertFalse(os.path.exists(self.path("namesrv.properties")))

    def test_changeable(self) -> None:
        """Every other key can be changed, as mqadmin does."""
        peer = self.start(AccessSetup())
        before = self.shown(peer)
        for key in CHANGEABLE:
            # the keys of the controller are shown by its own request
            value = before.get(key, "false")
            self.assertEqual((key, self.update(peer, {key: value}).code), (key, 0))
        self.assertEqual(self.shown(peer), before)

    def test_every_key_is_in_one_list(self) -> None:
        """A new key can be changed over the network, or not, because somebody decided so."""
        keys = {field.key for cls in (*CONFIG_CLASSES, *ACCESS_CLASSES) for field in config_fields(cls)}
        self.assertEqual(sorted([*PROTECTED, *NEVER, *CHANGEABLE]), sorted(keys))

    def test_documented(self) -> None:
        """docs/security.md lists exactly the protected keys."""
        self.assertEqual(documented("NameServer"), sorted(PROTECTED))

    def test_white_list(self) -> None:
        """A key that configWhiteList names is written, counts from the next start, and leaves the file where it is."""
        peer = self.start(AccessSetup(), config_white_list="configStorePath; listenPort", config_black_list="")
        changes = {"configStorePath": self.path("elsewhere"), "listenPort": "9999"}
        self.assertEqual(self.update(peer, changes).code, 0)
        self.assertEqual(self.update(peer, {"productEnvName": "p"}).code, 0)
        self.assertEqual({key: self.written()[key] for key in changes}, changes)
        self.assertFalse(os.path.exists(self.path("elsewhere")))
        self.assertEqual(self.update(peer, {"kvConfigPath": "/x"}).code, ResponseCode.NO_PERMISSION)

    def test_bad_white_list(self) -> None:
        """A list that could not work ends the start and names the key."""
        for key in ("aclEnable", "configBlackList", "clusterTest", "listenPrt"):
            error = self.assertRaises(ConfigError, self.start, AccessSetup(), config_white_list=key)
            self.assertIn(f"configWhiteList='{key}' is wrong: {key} is ", str(error))

    def test_smuggled(self) -> None:
        """Neither a value with line ends nor an unknown key brings a protected key into the file."""
        peer = self.start(AccessSetup())
        value = "x\nbindAddress=1.2.3.4\r\nlistenPort=1"
        self.assertEqual(self.update(peer, {"productEnvName": value, "bindAddress ": "x", "unknown": "x"}).code, 0)
        written = self.written()
        self.assertEqual((written["productEnvName"], written["listenPort"]), (value, "9876"))
        self.assertEqual({"bindAddress ", "unknown"} & written.keys(), set())

    def test_secrets_stay_here(self) -> None:
        """A changed configuration is written with the keys of access, and shown without."""
        peer = self.start(AccessSetup(tls=TlsConfig(server_key_password="geheim", mode="permissive")))
        self.assertEqual(peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"productEnvName=p\n").code, 0)
        written = self.written()
        self.assertEqual((written["tls.server.keyPassword"], written["productEnvName"]), ("geheim", "p"))
        shown = peer.ask(RequestCode.GET_NAMESRV_CONFIG).body or b""
        self.assertIn(b"productEnvName=p", shown)
        self.assertNotIn(b"geheim", shown)


class OptionsTests(SynchronousTestCase):
    def parse(self, *arguments: str) -> Options:
        options = Options()
        options.parseOptions(list(arguments))
        return options

    def test_keys(self) -> None:
        """The keys of access are options."""
        setup = setup_of(self.parse("--tls.server.mode", "enforcing", "--aclEnable", "true", "--aclFile", "/x.yml"))
        self.assertEqual(setup.access.tls.mode, "enforcing")
        self.assertEqual(setup.access.acl, AclConfig(acl_enable=True, acl_file="/x.yml"))

    def test_bad_value(self) -> None:
        """A mode that is none ends the process and names the option."""
        error = self.assertRaises(SystemExit, self.parse, "--tls.server.mode", "strict")
        self.assertIn("tls.server.mode='strict'", str(error))
