"""The examples of docs/admin.md, run as they are printed there against a cluster of the test kit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from rmq.testing import cluster

ROOT = Path(__file__).resolve().parents[2]


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "admin.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)


#: lines that end with another status: groups are behind after their offsets were reset; nothing answers at the
#: addresses of the example of a context
STATUS = {"rmq-admin monitor --once --lag 1000": 2, "rmq-admin topic list --context prod": 3}


class ExampleTests(SynchronousTestCase):
    def test_examples(self) -> None:
        """Each line of each block ends with status 0, in the order of the document."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        (folder / "etc").symlink_to(ROOT / "etc")
        (folder / "rmq-admin").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmq.admin "$@"\n')
        (folder / "rmq-admin").chmod(0o755)
        with cluster(config={"brokerClusterName": "DefaultCluster"}) as mq:
            environ = {
                "PATH": f"{folder}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "NAMESRV_ADDR": mq.namesrv,
                "XDG_CONFIG_HOME": str(folder / "config"),
            }
            ran = 0
            for line in "".join(blocks()).splitlines():
                command = line.partition("  #")[0].strip().replace("127.0.0.1:9876", mq.namesrv)
                command = command.replace("--context prod", "--context prod --timeout 1")
                done = subprocess.run(
                    ["bash", "-o", "pipefail", "-c", command],
                    env=environ, cwd=folder, capture_output=True, text=True, timeout=60,
                )  # fmt: skip
                expected = STATUS.get(line.strip(), 0)
                self.assertEqual(done.returncode, expected, (command, done.stdout, done.stderr))
                ran += 1
        self.assertGreater(ran, 8)
