"""Run outside the source tree by test_installed.py: a batch write, a batch read, SQL and two
streams; prints what came out as JSON.

python installed_job.py <redis url> <queue> [remote url, or submitted] [register] [federation url]
[secret]

``submitted``: spark-submit says which master it is.
"""

from __future__ import annotations

import json
import sys
import tempfile

from pyspark.sql import SparkSession


def main(
    url: str, queue: str, remote: str = "", register: str = "", link: str = "", secret: str = ""
) -> None:
    found: dict[str, object] = {}
    local = SparkSession.builder.config("spark.ui.enabled", "false")
    builder = (
        local
        if remote == "submitted"
        else SparkSession.builder.remote(remote)
        if remote
        else local.master("local[2]")
    )
    spark = builder.getOrCreate()
    if register:
        import busmq_spark

        busmq_spark.register(spark)
    options = {"redis.url": url}
    rows = spark.range(1, 3, 1, 1).selectExpr("cast(id AS string) AS value")
    rows.write.format("busmq").mode("append").options(**options, queue=queue).save()
    read = spark.read.format("busmq").options(**options, subscribe=queue).load()
    found["batch"] = [[row.id, bytes(row.value).decode()] for row in read.collect()]
    spark.sql(
        f"CREATE TEMPORARY VIEW v USING busmq OPTIONS (`redis.url` '{url}', subscribe '{queue}')"
    )
    found["sql"] = [
        row.v for row in spark.sql("SELECT cast(value AS string) AS v FROM v ORDER BY id").collect()
    ]
    stream = (
        spark.readStream.format("busmq")
        .options(**options, subscribe=queue)
        .load()
        .selectExpr("value")
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = (
            stream.writeStream.format("busmq")
            .options(**options, queue=f"{queue}-out")
            .option("checkpointLocation", checkpoint)
        )
        query = writer.trigger(availableNow=True).start()
        found["ended"] = query.awaitTermination(300)
    out = spark.read.format("busmq").options(**options, subscribe=f"{queue}-out").load()
    found["stream"] = [bytes(row.value).decode() for row in out.collect()]
    if link:
        linked = {
            "federation.url": f"eu={link}",
            "federation.secret": secret,
            "subscribe": "linked",
        }
        found["linked"] = [
            bytes(row.value).decode()
            for row in spark.read.format("busmq").options(**linked).load().collect()
        ]
    module = sys.modules.get("busmq_spark")
    found["package"] = module.__file__ if module else None
    print("FOUND", json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
