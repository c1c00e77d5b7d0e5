"""TLS in a process whose reactor was imported without pyOpenSSL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime.tls.late import tls_later
from tests.needs import imports, need_extra
from tests.remoting.certificates import Authority

#: Greets over TLS on two ports, by startTLS and by listenSSL, and says what of TLS was imported when.
SCRIPT = """
import socket, ssl, sys
from rmq.runtime.tls.late import tls_later
from rmq.runtime.platform import the_reactor
if sys.argv[-1] != "LeanReactor":
    with tls_later():
        from twisted.internet import reactor
reactor = the_reactor()
from twisted.internet import tcp
from twisted.internet.interfaces import IReactorSSL, ITLSTransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread

def imported():
    return [name for name in ("OpenSSL", "twisted.internet.ssl", "twisted.internet._newtls") if name in sys.modules]

assert type(reactor).__name__ == sys.argv.pop(), reactor
print("before", imported(), IReactorSSL.providedBy(reactor), ITLSTransport.implementedBy(tcp.Server))
cert, key, ca = sys.argv[1:]

def options():
    from twisted.internet.ssl import PrivateCertificate
    return PrivateCertificate.loadPEM(open(cert, "rb").read() + open(key, "rb").read()).options()

class Greets(Protocol):
    def connectionMade(self):
        self.transport.write(b"hello")
        self.transport.loseConnection()

class Begins(Protocol):
    def connectionMade(self):
        self.transport.write(b"plain")
    def dataReceived(self, data):
        if data == b"go":
            self.transport.write(b"ready")
            self.transport.startTLS(options())
            self.transport.write(b"hello")
            self.transport.loseConnection()

def read_all(stream):
    found = b""
    while data := stream.recv(100):
        found += data
    return found

def talk(begins, greets):
    context = ssl.create_default_context(cafile=ca)
    plain = socket.create_connection(("127.0.0.1", begins), 20)
    assert plain.recv(5) == b"plain"
    print("plain", imported())
    plain.sendall(b"go")
    assert plain.recv(5) == b"ready"
    print("startTLS", read_all(context.wrap_socket(plain, server_hostname="127.0.0.1")))
    plain = socket.create_connection(("127.0.0.1", greets()), 20)
    print("listenSSL", read_all(context.wrap_socket(plain, server_hostname="127.0.0.1")))

def begin():
    first = reactor.listenTCP(0, Factory.forProtocol(Begins), interface="127.0.0.1")
    def second():
        from twisted.internet.threads import blockingCallFromThread
        listen = lambda: reactor.listenSSL(0, Factory.forProtocol(Greets), options(), interface="127.0.0.1")
        return blockingCallFromThread(reactor, listen).getHost().port
    done = deferToThread(talk, first.getHost().port, second)
    done.addErrback(lambda failure: failure.printTraceback(sys.stdout)).addBoth(lambda _: reactor.stop())

reactor.callWhenRunning(begin)
reactor.run()
print("after", imported())
"""


#: Listens on UDP and on a UNIX socket, and says what of them was imported when.
OTHER_SOCKETS = """
import sys
from rmq.runtime.platform import the_reactor
reactor = the_reactor()
from twisted.internet.protocol import DatagramProtocol, Factory

def imported():
    return [name for name in ("twisted.internet.udp", "twisted.internet.unix") if name in sys.modules]

print(imported())
datagrams, stream = reactor.listenUDP(0, DatagramProtocol()), reactor.listenUNIX(sys.argv[1], Factory())
from twisted.internet import udp, unix
print(imported(), type(datagrams) is udp.Port, type(stream) is unix.Port)
"""


class LateTests(SynchronousTestCase):
    maxDiff = None

    def test_other_sockets_when_they_are_used(self) -> None:
        """UDP and UNIX sockets are there, and cost nothing where nobody has them."""
        folder = Path(self.mktemp())
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", OTHER_SOCKETS, "socket"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=folder,
            env={**os.environ, **imports()},
        )
        expected = ["[]", "['twisted.internet.udp', 'twisted.internet.unix'] True True"]
        self.assertEqual(done.stdout.splitlines(), expected, done.stderr)

    def test_tls_when_it_is_used(self) -> None:
        """The reactor says that it can do TLS, plain connections bring nothing, startTLS and listenSSL work."""
        folder = Path(self.mktemp())
        folder.mkdir()
        authority = Authority()
        pem = authority.issue("server", ["127.0.0.1"])
        for name, data in (("cert", pem.certificate), ("key", pem.key), ("ca", authority.pem)):
            (folder / name).write_bytes(data)
        files = [str(folder / name) for name in ("cert", "key", "ca")]
        for reactor in ("LeanReactor", "EPollReactor"):
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", SCRIPT, *files, reactor],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                env={**os.environ, **imports()},
            )
            self.assertEqual(
                done.stdout.splitlines(),
                [
                    "before [] True True",
                    "plain []",
                    "startTLS b'hello'",
                    "listenSSL b'hello'",
                    "after ['OpenSSL', 'twisted.internet.ssl', 'twisted.internet._newtls']",
                ],
                done.stderr,
            )

    def test_too_late(self) -> None:
        """Where Twisted's TCP is imported already nothing happens, and nothing is left behind."""
        import twisted.internet.tcp

        before = dict(sys.modules)
        with tls_later():
            self.assertEqual({name: sys.modules[name] for name in before}, before)
        self.assertIs(sys.modules["twisted.internet.tcp"], twisted.internet.tcp)


class DialTests(SynchronousTestCase):
    def run_script(self, text: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()

    def test_our_processes_dial_without_openssl(self) -> None:
        """A broker, or rmq-admin, that uses no TLS does not import it; one that does has it later."""
        need_extra("tls")
        script = """
import sys
from rmq.runtime.platform import real_platform, the_reactor
reactor = the_reactor()
print(type(real_platform(reactor).endpoint_factory(reactor, "127.0.0.1", 1)).__name__, "OpenSSL" in sys.modules)
from twisted.internet.ssl import optionsForClientTLS
print(optionsForClientTLS("rmq").__class__.__name__, sys.modules["OpenSSL"] is not None)
"""
        self.assertEqual(self.run_script(script), ["TCP4ClientEndpoint", "False", "ClientTLSOptions", "True"])

    def test_programs_of_users_have_all_endpoints(self) -> None:
        """A program that imports ours may wrap endpoints in TLS itself, also after ours has dialled."""
        need_extra("tls")
        script = """
from rmq.runtime.platform import dial_by_name
from twisted.internet import reactor
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.ssl import optionsForClientTLS
print(type(wrapClientTLS(optionsForClientTLS("rmq"), dial_by_name(reactor, "127.0.0.1", 1))).__name__)
"""
        self.assertEqual(self.run_script(script), ["_WrapperEndpoint"])
