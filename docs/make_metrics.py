"""
Write docs/metrics.md from the code: ``python docs/make_metrics.py``. A test fails when it is out of date.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rmq.broker.http.metrics import BrokerCollector
from rmq.namesrv.metrics import NamesrvCollector
from rmq.runtime.http.metrics import DROPPED, Family, ProcessMetrics

PATH = Path(__file__).resolve().parent / "metrics.md"

HEAD = """\
# Metrics

The tables are generated from the code by `python docs/make_metrics.py`.

`--http [HOST:]PORT` on `twistd rmq-namesrv` or `twistd rmq-broker` opens an HTTP port; HOST is 127.0.0.1 unless given,
and without the option nothing listens and nothing is imported. It needs the extra: `pip install 'txrocketmq[metrics]'`.

| path | what it is |
|---|---|
| `/metrics` | Prometheus text format 0.0.4, or OpenMetrics when the scraper's Accept header prefers that |
| `/` | status page, readable in a terminal browser too (`w3m`, `lynx`); further pages are linked from it |
| `/healthz` | 200 `ok` while the role serves, else 503 with the reason: a store that has failed, `needWaitForService` |

`/healthz` is still `ok` while a full disk refuses sends: pulls are answered, and a restart would not help.
`rocketmq_store_disk_full` is 1 then.

A broker with 5.x's keys opens the same port without the option: `metricsExporterType=PROM`, with
`metricsPromExporterHost` (default brokerIP1) and `metricsPromExporterPort` (5557). `metricsLabel=zone:east,rack:1` adds
labels to all metrics of a broker.

There are no passwords, only GET and HEAD are answered, and nothing can be changed; values of passwords and secret keys
are left out of the configuration page. Every client of the port can read names of topics, groups and clients: open it
to the monitoring network only.

With `--http 0.0.0.0:8080` on each of these machines, Prometheus reads:

```yaml
scrape_configs:
  - job_name: rocketmq-namesrv
    static_configs: [{targets: ["namesrv-1:8080", "namesrv-2:8080"]}]
  - job_name: rocketmq-broker
    static_configs: [{targets: ["broker-a:8080", "broker-a-slave:8080"]}]
rule_files: [prometheus-alerts.yml]
```

[etc/prometheus-alerts.yml](../etc/prometheus-alerts.yml) holds alert rules for a start. They use the two job names.
Where one Prometheus sees several clusters, give their targets a label (`labels: {env: live}`): NameServers are compared
with those that have the same one. Tried on 28 and 29 November 2026 with Prometheus 2.42, real brokers and the Python
client: killed, hung and stopped masters, slaves and NameServers, two masters of one name, a failed fsync, full disks
of a master and of a slave, early deletions, a slave that is ahead, too many connections, dead letters of a new group,
discarded transactions. A start, a stop, an empty
cluster and new groups set off none. A slave that is stopped on purpose sets off `RocketMQBrokerDown` and
`RocketMQSlaveLost`: silence them in Alertmanager before.

[etc/grafana-dashboard.json](../etc/grafana-dashboard.json) is a dashboard for Grafana (Dashboards, New, Import): the
cluster at a glance, messages sent and consumed, lag of groups, latencies, errors, disks, replication, NameServers,
processes. It uses the two job names too. Its queries were tried with Prometheus 2.42, not yet in Grafana itself. Where
to look next:

| panel | next |
|---|---|
| Alerts | the description of the alert, in Prometheus or Alertmanager |
| Lag of a group | `/groups` of the broker: are consumers connected? `rmq-admin group members GROUP` |
| Refused requests | the label `response_code`; the broker's log, and `/requests` of its status pages |
| Masters that take messages | `/` of the broker: *Messages are*, *Disks used*, *Stop before* |
| Replication lag | `/` of the master and of the slave: *Last refusal*, *Last error* |

## What a scrape costs

Metrics are read from live objects when they are scraped; nothing is kept for them but plain counters. A scrape is
written in slices of a few milliseconds between which the process does its other work. A scrape that is less than a
second old answers the next one too. One metric has at most 20,000 series; further ones are omitted and counted in
`rocketmq_scrape_series_dropped`. The series of a topic or group end when it is
deleted. At most 32 connections are open at a time: a further one evicts the oldest. An idle one is closed after 30 s.

## Names

* **Apache 5.3.3**: what Apache's broker shows with `metricsExporterType=PROM` has the same name (unit at the end
  included), labels and unit here, so dashboards keep working, with these exceptions: `message_type` and the labels of
  `rocketmq_rpc_latency_milliseconds` beside `protocol_type` and `request_code` are missing; there is no
  `rocketmq_message_size`, no `rocketmq_consumer_inflight_messages`, `_ready_messages` and `_queueing_latency`, and
  `rocketmq_half_messages` and `_finish_message_latency`, no `rocketmq_topic_create_execution_time`, no label
  `otel_scope_name`, and nothing of timers, POP and tiered storage. Consumer lag, `rocketmq_messages_out_total` and
  `rocketmq_throughput_out_total` have series of retry topics too, with `is_retry="true"`; Apache's have none. Consumer
  lag is there for every group that has committed offsets and was not deleted; Apache's ends with the last consumer.
* **rocketmq-rust**: Apache's NameServer has no metrics. Names, units and labels are those of rocketmq-rust's
  NameServer, where the same thing can be said (`rocketmq-observability/src/semantic.rs` and `metrics/catalog.rs`, where
  it also names replication), with two differences: counters end in `_total`, as OpenMetrics demands (it has
  `rocketmq_namesrv_broker_registrations` without), and requests carry `request_code` besides `request_type`. What it
  measures and we do not have (admission control, queues of its write-behind key-value table) is left out.
* **rmq**: our own.

Latencies count from the moment a whole request has arrived to the moment its answer is handed to the socket. Look-ups
that arrive together are timed together.
"""


def listing(title: str, families: Iterable[Family]) -> str:
    lines = [f"## {title}", "", "| metric | type | labels | meaning | name of |", "|---|---|---|---|---|"]
    for found in families:
        labels = ", ".join(found.labels) or "-"
        lines.append(f"| `{found.name}` | {found.kind} | {labels} | {found.help} | {found.origin} |")
    return "\n".join(lines) + "\n"


def text() -> str:
    """Return the whole document."""
    process = [found for found, _ in ProcessMetrics().in_slices()]
    broker = "Every metric of a broker has the labels cluster, node_type (`broker`) and node_id (its brokerName) too."
    return "\n".join(
        [
            HEAD,
            listing("NameServer", NamesrvCollector.families()),
            listing("Broker", BrokerCollector.families()).replace("\n\n", f"\n\n{broker}\n\n", 1),
            listing("Both", [*process, DROPPED]),
        ]
    )


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
