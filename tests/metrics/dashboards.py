"""The dashboards of conf/grafana/, made with grafana-foundation-sdk.

python -m tests.metrics.dashboards
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders.common import VizLegendOptions
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

FOLDER = Path(__file__).parents[2] / "conf" / "grafana"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
Q, R = 'queue=~"$queue"', 'queue=~"$queue", reader=~"$reader"'
# Row → panels: title, unit, legend, query. Titles say what the unit does not.
OVERVIEW: dict[str, list[tuple[str, str, str, str]]] = {
    "Now": [
        ("Redis servers that answer", "none", "", "sum(busmq_redis_up)"),
        ("Messages that wait", "short", "", "sum(busmq_queue_waiting_messages)"),
        ("Stuck readers", "none", "", 'count(busmq_reader_state{state="stuck"}) or vector(0)'),
        ("Dead letters", "short", "", "sum(busmq_queue_dead_letters) or vector(0)"),
        (
            "Failures found by the doctor",
            "none",
            "",
            'sum(busmq_doctor_findings{level="failure"}) or vector(0)',
        ),
    ],
    "Readers": [
        (
            "Lag in seconds, the ten longest",
            "s",
            "{{queue}} {{reader}}",
            "topk(10, busmq_reader_lag_seconds)",
        ),
        (
            "Lag in messages, the ten largest",
            "short",
            "{{queue}} {{reader}}",
            "topk(10, busmq_reader_lag_messages)",
        ),
        ("Readers by state", "none", "{{state}}", "count by (state) (busmq_reader_state)"),
    ],
    "Queues": [
        (
            "Pushes a second, the ten busiest queues",
            "ops",
            "{{queue}}",
            "topk(10, rate(busmq_queue_newest_id[$__rate_interval]))",
        ),
        (
            "Waiting, the ten longest queues",
            "short",
            "{{queue}}",
            "topk(10, busmq_queue_waiting_messages)",
        ),
        ("Bytes, the ten largest queues", "bytes", "{{queue}}", "topk(10, busmq_queue_bytes)"),
    ],
    "Redis": [
        ("Memory", "bytes", "{{server}}", "busmq_redis_memory_bytes"),
        ("Clients", "none", "{{server}}", "busmq_redis_clients"),
        ("Replicas", "none", "{{server}}", "busmq_redis_replicas"),
    ],
}
QUEUE: dict[str, list[tuple[str, str, str, str]]] = {
    "Queue": [
        ("Waiting", "short", "{{queue}}", f"busmq_queue_waiting_messages{{{Q}}}"),
        ("Kept", "short", "{{queue}}", f"busmq_queue_kept_messages{{{Q}}}"),
        (
            "Pushes a second",
            "ops",
            "{{queue}}",
            f"rate(busmq_queue_newest_id{{{Q}}}[$__rate_interval])",
        ),
        ("Bytes", "bytes", "{{queue}}", f"busmq_queue_bytes{{{Q}}}"),
        ("Expires in", "s", "{{queue}}", f"busmq_queue_expires_seconds{{{Q}}}"),
    ],
    "Readers": [
        ("Lag in messages", "short", "{{reader}}", f"busmq_reader_lag_messages{{{R}}}"),
        ("Lag in seconds", "s", "{{reader}}", f"busmq_reader_lag_seconds{{{R}}}"),
        ("State", "none", "{{reader}} {{state}}", f"busmq_reader_state{{{R}}}"),
    ],
}
SPARK: dict[str, list[tuple[str, str, str, str]]] = {
    "Queries": [
        ("Rows a second", "ops", "{{query}}", "rate(busmq_query_rows_total[$__rate_interval])"),
        ("Time of a batch", "s", "{{query}}", "busmq_query_batch_seconds"),
        ("Time by phase", "s", "{{query}} {{phase}}", "busmq_query_phase_seconds"),
        ("Lag in messages", "short", "{{query}}", "busmq_query_lag_messages"),
        ("Lag in seconds", "s", "{{query}}", "busmq_query_lag_seconds"),
        ("Running", "none", "{{query}}", "busmq_query_running"),
        ("Restarts", "none", "{{query}}", "busmq_query_restarts_total"),
        ("Lost messages", "short", "{{query}}", "busmq_query_lost_messages"),
        (
            "Seconds since the last progress",
            "s",
            "{{query}}",
            "time() - busmq_query_last_progress_timestamp_seconds",
        ),
    ],
}
DASHBOARDS = {
    "busmq-overview": ("busmq: overview", OVERVIEW, ()),
    "busmq-queue": ("busmq: one queue", QUEUE, ("queue", "reader")),
    "busmq-spark": ("busmq: Spark", SPARK, ()),
}


def made(name: str) -> str:
    """Return the JSON of a dashboard."""
    title, rows, variables = DASHBOARDS[name]
    board = Dashboard(title).uid(name).tags(["busmq"]).refresh("15s").time("now-1h", "now")
    board = board.with_variable(DatasourceVariable("source").type("prometheus"))
    for variable in variables:
        metric = (
            "busmq_queue_waiting_messages"
            if variable == "queue"
            else ('busmq_reader_lag_messages{queue=~"$queue"}')
        )
        board = board.with_variable(
            QueryVariable(variable)
            .datasource(SOURCE)
            .query(f"label_values({metric}, {variable})")
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    for row, panels in rows.items():
        board = board.with_row(Row(row))
        for what, unit, legend, query in panels:
            panel: Any = Timeseries() if legend else Stat()
            if legend:
                panel = panel.legend(VizLegendOptions().show_legend(True))
            target = Dataquery().ref_id("A").expr(query).legend_format(legend or "__auto")
            board = board.with_panel(
                panel.title(what)
                .unit(unit)
                .datasource(SOURCE)
                .span(8 if legend else 4)
                .height(8 if legend else 4)
                .with_target(target)
            )
    return json.dumps(board.build(), cls=JSONEncoder, sort_keys=True, indent=2) + "\n"


def queries() -> Iterator[str]:
    """Return the query of each panel with its variables replaced."""
    for _, rows, _ in DASHBOARDS.values():
        for panels in rows.values():
            for _, _, _, query in panels:
                replaced = query.replace("$queue", ".*").replace("$reader", ".*")
                yield replaced.replace("$__rate_interval", "1m")


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(made(each))
