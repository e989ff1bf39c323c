"""What each Python process of a query imports of ours: only what its own work needs. Several are
started for the first batch of a driver.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

CLIENTS = {"asyncio", "hiredis", "redis", "ssl"}
"""What a process loads that talks to Redis: redis-py imports all of itself, and asyncio."""
ARROW = {"numpy", "pyarrow"}
LINKS = {"websockets", "busmq_spark.federation"}
READING = {
    "busmq_spark.spark.read.batch_reader",
    "busmq_spark.spark.read.planning",
    "busmq_spark.spark.read.tasks",
    "busmq_spark.reading.batch_planner",
}
WRITING = {
    "busmq_spark.spark.write.writers",
    "busmq_spark.spark.write.tasks",
    "busmq_spark.spark.write.committer",
    "busmq_spark.spark.write.job_outcomes",
}
ALL = CLIENTS | ARROW | LINKS | READING | WRITING

PROGRAM = """
import json, pickle, sys
import {spark}
from pyspark.sql.types import BinaryType, LongType, StringType, StructType
rows = StructType().add("queue", StringType()).add("id", LongType()).add("value", BinaryType())
address = {{"redis.url": "redis://127.0.0.1:1"}}
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
SOURCE = "from pyspark_busmq import DefaultSource\n"
PROCESSES = {
    # What the process does -> the module of pyspark that runs it, what it calls, and what it has no
    # use for.
    "looks for sources": (
        "lookup_data_sources",
        "import pyspark_busmq, pyspark_busmq_realtime",
        ALL,
    ),
    "says the columns": (
        "create_data_source",
        SOURCE + "DefaultSource({**address, 'subscribe': 'q'}).schema()",
        ALL,
    ),
    "makes the reader": (
        "plan_data_source_read",
        SOURCE + "reader = DefaultSource({**address, 'subscribe':"
        " 'q'}).streamReader(rows)\npickle.dumps(reader.read)\nassert type(reader).__name__ =="
        " 'StreamReader'",
        ALL,
    ),
    "makes the writer": (
        "write_into_data_source",
        SOURCE + "pickle.dumps(DefaultSource({**address, 'queue': 'q'}).streamWriter(rows, False))",
        ALL - {"busmq_spark.spark.write.writers"},
    ),
    "plans batches": (
        "plan_data_source_read",
        SOURCE + "DefaultSource({**address, 'subscribe':"
        " 'q'}).streamReader(rows).prepareForTriggerAvailableNow()",
        LINKS | WRITING | {"busmq_spark.spark.read.batch_reader"},
    ),
    "commits": (
        "python_streaming_sink_runner",
        SOURCE + "DefaultSource({**address, 'queue': 'q'}).streamWriter(rows, False)\nimport"
        " busmq_spark.spark.write.committer",
        LINKS
        | ARROW
        | READING
        | {"busmq_spark.spark.write.tasks", "busmq_spark.spark.write.job_outcomes"},
    ),
    "reads in tasks": (
        "plan_data_source_read",
        "import busmq_spark.spark.read.stream_reader, busmq_spark.spark.read.tasks",
        LINKS
        | WRITING
        | {
            "busmq_spark.spark.read.planning",
            "busmq_spark.reading.batch_planner",
            "pyarrow.compute",
        },
    ),
    "writes in tasks": (
        "write_into_data_source",
        "import busmq_spark.spark.write.writers, busmq_spark.spark.write.tasks",
        LINKS
        | READING
        | {
            "busmq_spark.spark.write.committer",
            "busmq_spark.spark.write.job_outcomes",
            "pyarrow.compute",
        },
    ),
}


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_imports_only_what_its_work_needs(process: str) -> None:
    """Beside what pyspark has imported there."""
    spark, statement, unneeded = PROCESSES[process]
    program = PROGRAM.format(spark=f"pyspark.sql.worker.{spark}", statement=statement)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert {*json.loads(done.stdout)} & unneeded == set()
