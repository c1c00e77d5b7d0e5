"""The clients with the properties file of TLS that Java's clients take."""

from __future__ import annotations

import ssl
from pathlib import Path

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from rmq.aio import Client
from rmq.aio.tls import TlsFiles
from rmq.blocking import Client as BlockingClient
from rmq.errors import ConfigurationError
from rmq.tx import Client as TwistedClient
from tests.remoting.certificates import Authority

AUTHORITY, STRANGER = Authority(), Authority("a stranger")


class FileTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir(parents=True)
        self.ca = self.write("ca.pem", AUTHORITY.pem)
        self.install("server", AUTHORITY)

    def write(self, name: str, data: bytes | str) -> Path:
        path = self.folder / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def install(self, name: str, authority: Authority, **terms: str) -> None:
        pem = authority.issue(name, ["127.0.0.1"], **terms)  # type: ignore[arg-type]
        self.write(f"{name}.pem", pem.certificate)
        self.write(f"{name}.key", pem.key)

    def properties(self, **values: object) -> Path:
        return self.write("tls.properties", "".join(f"tls.client.{key}={value}\n" for key, value in values.items()))

    def shown(self, path: Path | TlsFiles, *, name: str = "server", asks: bool = False, host: str = "127.0.0.1") -> str:
        """Shake hands with a server that shows the certificate ``name``; return the name that the client shows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED if asks else ssl.CERT_NONE
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(to_server, to_client, server_side=True)
        files = path if isinstance(path, TlsFiles) else TlsFiles(path)
        client = files.context().wrap_bio(to_client, to_server, server_hostname=host)
        for _ in range(3):
            for end in (client, server):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    pass
        certificate = server.getpeercert() or {}
        return "".join(entry[0][1] for entry in certificate.get("subject", ()))

    def test_verifies(self) -> None:
        """With authServer a server's certificate must be of the authority, and for the address that was dialled."""
        path = self.properties(authServer=True, trustCertPath=self.ca)
        self.assertEqual(self.shown(path), "")
        self.assertRaises(ssl.SSLCertVerificationError, self.shown, path, host="127.0.0.2")
        self.install("false", STRANGER)
        self.assertRaises(ssl.SSLCertVerificationError, self.shown, path, name="false")

    def test_verifies_by_the_system(self) -> None:
        """authServer without trustCertPath trusts whom the system trusts, which is not our authority."""
        self.assertRaises(ssl.SSLCertVerificationError, self.shown, self.properties(authServer=True))

    def test_trusts_all(self) -> None:
        """Without authServer, as Apache's default has it, any certificate will do."""
        self.install("false", STRANGER)
        self.assertEqual(self.shown(self.write("tls.properties", ""), name="false"), "")

    def test_shows_its_own(self) -> None:
        """A server that asks for a certificate gets the client's, also one whose key has a password."""
        for terms in ({}, {"password": "secret"}):
            self.install("client", AUTHORITY, **terms)
            path = self.properties(
                certPath=self.folder / "client.pem",
                keyPath=self.folder / "client.key",
                keyPassword=terms.get("password", ""),
            )
            self.assertEqual(self.shown(path, asks=True), "client")

    def test_renewed(self) -> None:
        """The next connection shows and trusts what the files hold by then; a file that is gone is named."""
        self.install("client", AUTHORITY)
        files = TlsFiles(
            self.properties(
                authServer=True,
                trustCertPath=self.ca,
                certPath=self.folder / "client.pem",
                keyPath=self.folder / "client.key",
            )
        )
        self.assertEqual(self.shown(files, asks=True), "client")
        self.assertIs(files.context(), files.context())
        renewed = AUTHORITY.issue("renewed")
        self.write("client.pem", renewed.certificate)
        self.assertIn("client.pem", str(self.assertRaises(ConfigurationError, files.context)))
        self.write("client.key", renewed.key)
        self.assertEqual(self.shown(files, asks=True), "renewed")
        self.write("ca.pem", STRANGER.pem)
        self.install("false", STRANGER)
        self.assertEqual(self.shown(files, name="false"), "")
        (self.folder / "client.key").unlink()
        self.assertIn("client.key", str(self.assertRaises(ConfigurationError, files.context)))

    def test_errors(self) -> None:
        """What is wrong with a file is said when the client is made, in each face, with the file or the key."""
        pair: dict[str, object] = {"certPath": self.folder / "client.pem", "keyPath": self.folder / "client.key"}
        self.install("client", AUTHORITY, password="secret")
        bad = self.write("bad.pem", "bad")
        cases: list[tuple[dict[str, object], str]] = [
            ({"trustPath": "x"}, "tls.client.trustPath"),
            ({"authServer": "perhaps"}, "tls.client.authServer"),
            ({"certPath": "x"}, "tls.client.keyPath"),
            ({"authServer": True, "trustCertPath": "/none/ca.pem"}, "/none/ca.pem"),
            ({"authServer": True, "trustCertPath": bad}, "bad.pem"),
            (pair, "tls.client.keyPassword"),
            ({**pair, "keyPassword": "wrong"}, "tls.client.keyPassword"),
            ({"certPath": bad, "keyPath": bad}, "bad.pem"),
        ]
        for face in (lambda path: Client(tls=path), lambda path: BlockingClient(tls=path), self.twisted):
            error = self.assertRaises(ConfigurationError, face, self.folder / "none.properties")
            self.assertIn("none.properties", str(error))
            for values, named in cases:
                self.assertIn(named, str(self.assertRaises(ConfigurationError, face, self.properties(**values))))

    def twisted(self, path: Path) -> TwistedClient:
        return TwistedClient(Clock(), tls=path)
