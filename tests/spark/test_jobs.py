"""Jobs in Spark: fields of the jobs that messages name as a column, and rows that are outcomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from busmq_spark.bus.bus import Bus as Program
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.errors import ConfigError, MessageRefused
from busmq_spark.groups import job as flows
from busmq_spark.groups import shared_group as groups
from busmq_spark.groups.job import LeasedJob
from busmq_spark.groups.shared_group import LeasedMessage
from busmq_spark.options import WriteOptions
from busmq_spark.queue.keys import JobKeys, QueueKeys
from busmq_spark.reading.reader_subscriptions import register
from busmq_spark.spark.data_source import BusmqDataSource
from busmq_spark.spark.read.tasks import check_job_field_names
from busmq_spark.spark.write.job_outcomes import JobOutcomeColumns, JobOutcomeTaskWriter
from tests.conftest import Fresh
from tests.faults.job_scene import settles
from tests.faults.proxy import Proxy
from tests.spark.conftest import Bus
from tests.support import PATIENCE_S

Read = Callable[..., DataFrame]


@pytest.fixture
def jobs(bus: Bus, fresh: Fresh) -> Any:
    with Program.sync(bus.url) as program, program.jobs(fresh()) as found:
        yield found


def sent(jobs: Any, **fields: Any) -> Any:
    job = jobs.new()
    for name, value in fields.items():
        job[name] = value
    jobs.send(job)
    return job


def test_fields_are_a_column_for_each_message(spark: SparkSession, bus: Bus, jobs: Any) -> None:
    sent(jobs, inbound=b"\x00\xff", meta={"n": 1}, other=1)
    sent(jobs, meta="\u00e9")
    jobs.queue.push("names no job")
    options = {"redis.url": bus.url, "subscribe": jobs.queue.name, "jobFields": "inbound,meta"}
    frame = spark.read.format("busmq").options(**options).load()
    assert (
        frame.schema.simpleString()
        == "struct<queue:string,id:bigint,value:binary,fields:map<string,binary>>"
    )
    found = [row.fields for row in frame.orderBy("id").collect()]
    assert found == [
        {"inbound": bytearray(b"\x00\xff"), "meta": bytearray(b'{"n":1}')},
        {"meta": bytearray('"\u00e9"'.encode())},
        None,
    ]


def test_more_messages_than_one_round_trip_has(spark: SparkSession, bus: Bus, jobs: Any) -> None:
    for n in range(1201):
        sent(jobs, n=n)
    options = {"redis.url": bus.url, "subscribe": jobs.queue.name, "jobFields": "n"}
    rows = (
        spark.read.format("busmq")
        .options(**options)
        .load()
        .orderBy("id")
        .select(f.col("fields")["n"].cast("string").cast("int"))
        .collect()
    )
    assert [row[0] for row in rows] == list(range(1201))


def test_a_query_is_a_worker(spark: SparkSession, bus: Bus, jobs: Any, tmp_path: Path) -> None:
    """Reads the jobs, stores a field of each, and settles them: those that fail with their error. A
    run with the same checkpoint goes on.
    """
    jobs.queue.subscribe("enrich", "latest")
    good, bad = sent(jobs, inbound="Hello"), sent(jobs, inbound="")

    def run() -> None:
        options = {
            "redis.url": bus.url,
            "subscribe": jobs.queue.name,
            "subscription": "enrich",
            "jobFields": "inbound",
        }
        text = f.get_json_object(
            f.format_string('{"a":%s}', f.col("fields")["inbound"].cast("string")), "$.a"
        )
        rows = (
            spark.readStream.format("busmq")
            .options(**options)
            .load()
            .select(
                "queue",
                "id",
                "value",
                f.when(text == "", "no greeting").alias("error"),
                f.concat(text, f.lit(" world!")).alias("out"),
            )
            .select(
                "queue",
                "id",
                "value",
                "error",
                f.create_map(f.lit("outbound"), f.col("out").cast("binary")).alias("fields"),
            )
        )
        writer = (
            rows.writeStream.format("busmq")
            .options(**{"redis.url": bus.url, "settle": "enrich"})
            .trigger(availableNow=True)
        )
        assert (
            writer.option("checkpointLocation", str(tmp_path))
            .start()
            .awaitTermination(int(2 * PATIENCE_S))
        )

    run()
    assert good.wait(["enrich"], timeout_s=PATIENCE_S)["enrich"].ok
    assert good.load("outbound") == {"outbound": b"Hello world!"}
    done = bad.wait(["enrich"], timeout_s=PATIENCE_S, fail_fast=False)["enrich"]
    assert (done.ok, done.error, done.message) == (False, "no greeting", 2)
    third = sent(jobs, inbound="Again")
    run()
    assert third.wait(["enrich"], timeout_s=PATIENCE_S)["enrich"].ok
    assert jobs.queue.count() <= 1  # acknowledged with the next batch


@pytest.fixture
def write(spark: SparkSession, bus: Bus, jobs: Any) -> Callable[..., None]:
    def run(rows: list[tuple[Any, ...]], schema: str, **options: str) -> None:
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        given = {"redis.url": bus.url, "settle": "g", "queue": jobs.queue.name, **options}
        frame.write.format("busmq").mode("append").options(**given).save()

    return run


def test_a_batch_that_comes_again_changes_nothing(write: Callable[..., None], jobs: Any) -> None:
    job = sent(jobs)
    schema = "job string, id long, outcome string, error string, fields map<string,string>"
    write([(job.id, 1, None, None, {"out": "first"})], schema)
    before = job.outcomes()
    assert job.load("out", forget=("out",)) == {"out": b"first"}
    write([(job.id, 1, "failed", "again", {"out": "second"})], schema)
    assert job.outcomes() == before
    assert job.load("out") == {"out": None}
    jobs.send(job)
    write([(job.id, 2, "failed", None, {"out": "third", "none": None})], schema)
    done = job.outcomes()["g"]
    assert (done.ok, done.error, done.message) == (False, "failed", 2)
    assert job.load("out", "none") == {"out": b"third", "none": None}


def settle(url: str, queue: str, *rows: dict[str, Any]) -> None:
    """What a task does with these rows."""
    options = WriteOptions(url=url, queue=queue, settle="g")
    JobOutcomeTaskWriter(options, JobOutcomeColumns(queue)).write(
        iter([pa.RecordBatch.from_pylist(list(rows))])
    )


def test_rows_of_spark_4_0_are_written_too(bus: Bus, jobs: Any) -> None:
    some = [sent(jobs), sent(jobs)]
    rows = [
        {"job": some[0].id, "id": 1, "fields": {"a": b"1"}},
        {"job": some[1].id, "id": 2, "fields": {"b": bytearray(b"2")}},
    ]
    settle(bus.url, jobs.queue.name, *rows)
    assert [(job.load("a", "b"), job.outcomes()["g"].ok) for job in some] == [
        ({"a": b"1", "b": None}, True),
        ({"a": None, "b": b"2"}, True),
    ]


def test_a_run_that_stopped_half_way_keeps_no_job_from_the_next_and_its_packets_come_too_late(
    redis_server: EmbeddedRedis, bus: Bus, jobs: Any
) -> None:
    """The next one has another checkpoint, or another sinkId. Who waited has read the fields when
    what the first one has sent arrives.
    """
    job = sent(jobs)
    with Proxy(redis_server.port) as proxy:
        gate = proxy.hold(settles)
        slow = Thread(
            target=settle,
            args=(proxy.url, jobs.queue.name, {"job": job.id, "id": 1, "fields": {"by": b"slow"}}),
        )
        slow.start()
        late = gate.wait()
        settle(bus.url, jobs.queue.name, {"job": job.id, "id": 1, "fields": {"by": b"quick"}})
        before = job.outcomes()
        assert before["g"].ok
        assert job.load("by", forget=("by",)) == {"by": b"quick"}
        gate.open()
        late.release()
        slow.join()
    assert job.outcomes() == before
    assert job.load("by") == {"by": None}


@pytest.mark.parametrize("tries", [1, 2])
def test_a_job_that_a_worker_has_is_left_to_it_and_that_is_logged(
    bus: Bus, jobs: Any, caplog: pytest.LogCaptureFixture, tries: int
) -> None:
    """Of a message that is leased first nothing is written when a worker begins; the group has it
    all the same.
    """
    job, keys = sent(jobs), QueueKeys(jobs.queue.name)
    bus.link.run(register(keys, "g", "earliest", shared={"lease_ms": 60_000, "limit": 0}))
    for n in range(tries):
        [delivery] = bus.link.run(groups.lease(keys, "g", f"t{n}", 1)).deliveries
        work = LeasedJob(
            delivery, JobKeys(job.id), "", "g", bus("HGET", keys.metadata, "born").decode(), ""
        )
        assert bus.link.run(flows.begin_work([work], 60)) == [("ok", b"")]
        if n + 1 < tries:
            bus.link.run(
                groups.settle(keys, "g", work.life, groups.settlements_of([delivery], "retry"))
            )
    settle(bus.url, jobs.queue.name, {"job": job.id, "id": 1, "fields": {"by": b"row"}})
    assert (job.outcomes(), job.load("by")) == ({}, {"by": None})
    assert (
        f"queue {jobs.queue.name!r}, group 'g': 1 jobs are not settled: a worker has them"
        in caplog.messages
    )
    assert bus.link.run(flows.write_outcomes([(work, None)], keys.name, 60)) == [("ok", b"")]


@pytest.mark.parametrize("named", [True, False])
def test_a_job_that_a_program_had_begun_before_first_leases_went_without_a_record_is_left_to_it(
    bus: Bus, jobs: Any, named: bool
) -> None:
    job = sent(jobs)
    born = bus("HGET", QueueKeys(jobs.queue.name).metadata, "born").decode()
    work = LeasedJob(
        LeasedMessage(1, b"", 1, 4, "token", 5), JobKeys(job.id), "", "g", born, ""
    )  # not leased at 4 first, as it were
    assert bus.link.run(flows.begin_work([work], 60)) == [("ok", b"")]
    settle(
        bus.url,
        jobs.queue.name,
        {"job": job.id, "fields": {"by": b"row"}, **({"id": 1} if named else {})},
    )
    assert (job.outcomes(), job.load("by")) == ({}, {"by": None})


def test_outcomes_are_pushed_to_the_queue_that_their_jobs_name(bus: Bus, fresh: Fresh) -> None:
    """Also the outcome of a run that ended before it had pushed it."""
    with Program.sync(bus.url) as program, program.jobs(fresh(), durable=True) as jobs:
        name = jobs.queue.name
        found = [sent(jobs), sent(jobs)]
        rows = [{"value": value, "id": id} for id, value in enumerate(bus.stored(name), 1)]
        settle(bus.url, name, {"job": found[0].id, "id": 1})  # does not know of that queue
        assert bus.stored(f"{name}.done") == []
        settle(bus.url, name, *rows)
        assert [
            (each.job, each.group, each.ok)
            for each in map(flows.decode_outcome, bus.stored(f"{name}.done"))
        ] == [(job.id, "g", True) for job in found]


def test_without_ids_the_newest_message_counts(write: Callable[..., None], jobs: Any) -> None:
    job = sent(jobs)
    jobs.send(job)
    write([(job.id,)], "job string")
    assert (job.outcomes()["g"].ok, job.outcomes()["g"].message) == (True, 2)


def test_without_ids_a_task_that_comes_again_behind_a_newer_message_changes_nothing(
    bus: Bus, jobs: Any
) -> None:
    """What counts as the newest message is read once, when the write is planned: else a job that
    was settled would be settled again.
    """
    job, schema = sent(jobs), StructType().add("job", "string").add("error", "string")
    source = BusmqDataSource({"redis.url": bus.url, "settle": "g", "queue": jobs.queue.name})
    planned = CloudPickleSerializer().dumps(source.writer(schema, overwrite=False))
    for error in (None, "again"):
        CloudPickleSerializer().loads(planned).write(
            iter(
                [
                    pa.RecordBatch.from_pylist(
                        [{"job": job.id, "error": error}], to_arrow_schema(schema)
                    )
                ]
            )
        )
        assert (job.outcomes()["g"].ok, job.outcomes()["g"].message) == (True, 1)
        jobs.send(job)


def test_rows_that_name_their_queues_need_ids(bus: Bus, jobs: Any) -> None:
    """Which queues these are is not known when the write is planned."""
    schema = StructType().add("job", "string").add("queue", "string")
    source = BusmqDataSource({"redis.url": bus.url, "settle": "g"})
    with pytest.raises(
        ConfigError,
        match=(
            "a write to the queues that its rows name needs, with settle, the column id of the"
            " source"
        ),
    ):
        source.writer(schema, overwrite=False)
    job = sent(jobs)
    writer = source.writer(schema.add("id", "long"), overwrite=False)
    writer.write(
        iter([pa.RecordBatch.from_pylist([{"job": job.id, "queue": jobs.queue.name, "id": 1}])])
    )
    assert job.outcomes()["g"].message == 1


def test_a_query_needs_the_ids_of_the_messages_that_its_rows_answer(bus: Bus, jobs: Any) -> None:
    """Its batches come again, when another message may be the newest: that would be another
    outcome.
    """
    schema = StructType().add("job", "string")
    source = BusmqDataSource({"redis.url": bus.url, "settle": "g", "queue": jobs.queue.name})
    with pytest.raises(
        ConfigError, match="a query needs, with settle, the column id of the source"
    ):
        source.streamWriter(schema, overwrite=False)
    source.streamWriter(schema.add("id", "long"), overwrite=False)
    job, name = sent(jobs), jobs.queue.name
    writer = JobOutcomeTaskWriter(
        WriteOptions(url=bus.url, queue=name, settle="g"),
        JobOutcomeColumns.of(schema, name, needs_id=True),
    )
    with pytest.raises(MessageRefused, match="column 'id' is NULL in some rows"):
        writer.write(iter([pa.RecordBatch.from_pylist([{"job": job.id, "id": None}])]))
    assert job.outcomes() == {}
    for error in (None, "again"):
        writer.write(iter([pa.RecordBatch.from_pylist([{"job": job.id, "id": 1, "error": error}])]))
        sent(jobs)
    assert (job.outcomes()["g"].ok, job.outcomes()["g"].message) == (True, 1)


@pytest.mark.parametrize(
    ("row", "schema", "found"),
    [
        ((None,), "job string", "column 'job' is NULL in some rows"),
        (("a:b",), "job string", "the id of the job is 'a:b'"),
        (("no job",), "value string", "names no job"),
        (
            ("a", "maybe"),
            "job string, outcome string",
            "column 'outcome' is 'maybe' in some rows; expected 'ok', 'failed' or NULL",
        ),
        (
            ("a", {"done": "x"}),
            "job string, fields map<string,string>",
            "the name of the field is 'done'",
        ),
    ],
)
def test_a_bad_row_is_named(
    write: Callable[..., None], row: tuple[Any, ...], schema: str, found: str
) -> None:
    with pytest.raises(PySparkException, match=found):
        write([row], schema)


def test_a_queue_that_does_not_exist_is_none_of_jobs(
    write: Callable[..., None], fresh: Fresh
) -> None:
    with pytest.raises(PySparkException, match="BUSMQ_QUEUE_MISSING"):
        write([("a",)], "job string", queue=fresh())


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ("outcome string", "no column names the job"),
        ("job string, extra int", "column 'extra' has no place; with settle the sink takes job"),
        ("job int", "column 'job' is int; expected string"),
        (
            "job string, fields map<string,int>",
            "column 'fields' is map<string,int>; expected map<string,binary>",
        ),
    ],
)
def test_columns_that_make_no_sense_are_refused(
    spark: SparkSession, columns: str, found: str
) -> None:
    schema = spark.createDataFrame([], columns).schema
    with pytest.raises(ConfigError, match=found):
        JobOutcomeColumns.of(schema, "q")
    with pytest.raises(ConfigError, match="no queue is named"):
        JobOutcomeColumns.of(spark.createDataFrame([], "job string").schema, None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("delivery", "exactly-once"),
        ("sinkId", "s"),
        ("onChangedBatch", "keep"),
        ("partitions", "2"),
        ("createQueue", "true"),
        ("maxsize", "9"),
        ("truncate", "true"),
    ],
)
def test_an_option_for_messages_is_refused_with_settle(name: str, text: str) -> None:
    source = BusmqDataSource({"redis.url": "redis://h", "settle": "g", name.lower(): text})
    schema = StructType().add("job", "string").add("queue", "string")
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(
            ConfigError,
            match=f"option '{name}' is for messages, and with settle rows are outcomes of jobs",
        ):
            writer(schema, overwrite=False)


def test_options_that_make_no_sense_are_refused(
    spark: SparkSession, bus: Bus, write: Callable[..., None]
) -> None:
    with pytest.raises(ConfigError, match="option 'jobFields': the name of the field is 'done'"):
        check_job_field_names(["a", "done"])
    own = {"redis.url": bus.url, "subscribe": "q", "jobFields": "a"}
    with pytest.raises(
        PySparkException, match="column 'fields' is map<int,int>; expected map<string,binary>"
    ):
        spark.read.format("busmq").schema("fields map<int,int>").options(**own).load().collect()
    frame = spark.createDataFrame([("a",)], "job string")
    for options, mode, found in [
        ({"topic": "t"}, "append", "jobs are messages of one queue, not of a topic"),
        ({"queue": "q"}, "overwrite", "mode overwrite deletes messages"),
    ]:
        with pytest.raises(PySparkException, match=found):
            frame.write.format("busmq").mode(mode).options(
                **{"redis.url": bus.url, "settle": "g", **options}
            ).save()
    given = {
        "redis.url": bus.url,
        "federation.url": "ws://h/bus",
        "federation.secret": "s" * 20,
        "subscribe": "q",
        "jobFields": "a",
    }
    with pytest.raises(PySparkException, match="a federation server has no jobs"):
        spark.read.format("busmq").options(**given).load()
