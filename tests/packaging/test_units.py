"""The units of systemd: what they start, and that they are as tight as the documents say."""

from __future__ import annotations

import configparser
import io
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.runtime import launch
from twisted.plugins import rmq_plugins

FOLDER = Path(__file__).resolve().parents[2] / "packaging" / "systemd"
MAKERS = {"rmq-namesrv": rmq_plugins.namesrv, "rmq-broker": rmq_plugins.broker}

#: in every unit; systemd-analyze weighs them, and `tox -e package` asks it
HARDENING = {
    "CapabilityBoundingSet": "",
    "LockPersonality": "yes",
    "NoNewPrivileges": "yes",
    "PrivateDevices": "yes",
    "PrivateTmp": "yes",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHome": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectSystem": "strict",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallFilter": "@system-service",
    "UMask": "0027",
}
SERVICE = {
    "Type": "notify",
    "LimitNOFILE": "65536",
    "OOMScoreAdjust": "-500",
    "Restart": "on-failure",
    "TimeoutStopSec": "60",
    "WatchdogSec": "60",
}


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(delimiters="=", comment_prefixes="#", interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((FOLDER / name).read_text("utf-8"))
    return parser


class UnitTests(SynchronousTestCase):
    def test_directives(self) -> None:
        """Each unit waits for READY, restarts after failures only, ends in a minute, and is hardened."""
        for path in FOLDER.glob("*.service"):
            service = unit(path.name)["Service"]
            self.assertEqual(HARDENING | SERVICE, {key: service.get(key) for key in HARDENING | SERVICE}, path.name)
            self.assertNotIn("MemoryMax", service, "mapped files count")
        self.assertEqual(unit("rmq-namesrv.service")["Service"]["DynamicUser"], "yes")
        # A recovery that reads a large log takes longer than any limit, and would begin again.
        self.assertEqual(unit("rmq-broker@.service")["Service"]["TimeoutStartSec"], "infinity")
        self.assertEqual(unit("rmq-broker@.service")["Service"]["User"], "rmq")

    def test_commands_are_understood(self) -> None:
        """The scripts read the command of their unit, with its file and folder in place, and stay in the foreground."""
        with tempfile.TemporaryDirectory(prefix="rmq-units-") as folder:
            Path(folder, "namesrv.properties").write_text("orderMessageEnable=true\n")
            Path(folder, "broker-a.properties").write_text("brokerName=broker-a\nbrokerIP1=192.0.2.1\n")
            for name, specifiers in (("rmq-namesrv.service", {}), ("rmq-broker@.service", {"%i": "broker-a"})):
                command = unit(name)["Service"]["ExecStart"].replace("${STATE_DIRECTORY}", folder)
                for sign, value in {**specifiers, "/etc/rmq": folder}.items():
                    command = command.replace(sign, value)
                program, *arguments = command.split()
                with redirect_stdout(io.StringIO()):
                    config = launch.parse(MAKERS[Path(program).name], arguments)
                self.assertEqual((config["nodaemon"], config["pidfile"]), (1, ""))
                first, *_ = config.subOptions.configs
                is_namesrv = name == "rmq-namesrv.service"
                kept = first.kv_config_path if is_namesrv else config.subOptions.configs[3].store_path_root_dir
                self.assertTrue(kept.startswith(folder), kept)

    def test_user_and_folder(self) -> None:
        """The user of the broker's unit is made by sysusers, and the folder of its files by tmpfiles."""
        service = unit("rmq-broker@.service")["Service"]
        users = [line.split()[1] for line in (FOLDER / "rmq.sysusers.conf").read_text().splitlines() if line[0] == "u"]
        self.assertEqual(users, [service["User"]])
        entries = [line.split() for line in (FOLDER / "rmq.tmpfiles.conf").read_text().splitlines() if line[0] != "#"]
        self.assertTrue(all(len(entry) == 6 for entry in entries), entries)
        self.assertEqual(entries[0], ["d", "/etc/rmq", "0755", "root", "root", "-"])
        self.assertIn(["z", "/etc/rmq/*.properties", "0640", "root", service["Group"], "-"], entries)
