"""The examples of docs/admin.md, run as they are printed there against a cluster of the test kit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from twisted.trial.unittest import SynchronousTestCase

from rmq.testing import cluster

ROOT = Path(__file__).resolve().parents[2]


def lines_of(*, accounts: bool) -> list[str]:
    """Return the lines of all blocks for a shell, those of the chapter about accounts or the others."""
    chapters = (ROOT / "docs" / "admin.md").read_text("utf-8").split("\n## ")
    chosen = [text for text in chapters if text.startswith("Accounts\n") is accounts]
    found = re.findall(r"^```sh\n(.*?)^```$", "\n".join(chosen), re.MULTILINE | re.DOTALL)
    return [line for block in found for line in block.splitlines()]


#: lines that end with another status: groups are behind after their offsets were reset; nothing answers at the
#: addresses of the example of a context; an account that may not administer
STATUS = {
    "rmq-admin monitor --once --lag 1000": 2,
    "rmq-admin topic list --context prod": 3,
    "rmq-admin topic create others --aclTools shop.yml": 1,
}


# tox -e trial runs them: a hundred processes take half a minute
@pytest.mark.campaign
class ExampleTests(SynchronousTestCase):
    def run_lines(self, lines: list[str], config: dict[str, object]) -> list[str]:
        """Run lines in a folder with ``etc``, against a cluster of this configuration; return what each printed."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        (folder / "etc").symlink_to(ROOT / "etc")
        (folder / "rmq-admin").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmq.admin "$@"\n')
        (folder / "rmq-admin").chmod(0o755)
        printed = []
        with cluster(config={"brokerClusterName": "DefaultCluster", **config}) as mq:
            environ = {
                "PATH": f"{folder}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "NAMESRV_ADDR": mq.namesrv,
                "XDG_CONFIG_HOME": str(folder / "config"),
            }
            for line in lines:
                text = line.partition("  #")[0].strip()
                command = text.replace("127.0.0.1:9876", mq.namesrv)
                command = command.replace("--context prod", "--context prod --timeout 1")
                done = subprocess.run(
                    ["bash", "-o", "pipefail", "-c", command],
                    env=environ, cwd=folder, capture_output=True, text=True, timeout=60,
                )  # fmt: skip
                self.assertEqual(done.returncode, STATUS.get(text, 0), (command, done.stdout, done.stderr))
                printed.append(done.stdout)
        return printed

    def test_examples(self) -> None:
        """Each line of each block ends with status 0, in the order of the document."""
        lines = lines_of(accounts=False)
        printed = self.run_lines(lines, {"traceTopicEnable": "true"})
        self.assertGreater(len(printed), 30)
        trace = printed[lines.index("rmq-admin message trace parcel-1")]
        kinds = [row.split()[0] for row in trace.splitlines()[1:]]
        self.assertEqual(sorted(kinds), ["Pub", "SubAfter", "SubBefore"])

    def test_accounts(self) -> None:
        """Those of accounts, too; what an account may not do is refused."""
        accounts = ROOT / "etc" / "plain_acl.yml"
        own = Path(self.mktemp()).absolute()
        own.write_bytes(accounts.read_bytes())
        printed = self.run_lines(lines_of(accounts=True), {"aclEnable": "true", "aclFile": str(own)})
        self.assertIn("billing-consumers=SUB", printed[0])
        self.assertIn("hello", printed[6])
        self.assertNotIn("web-shop", own.read_text())
