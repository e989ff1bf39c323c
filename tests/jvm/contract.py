"""What Java needs to know of Python: ``python -m tests.jvm.contract`` writes it into the jar's
resources (with ``-``: prints it), and a test compares the two.

Errors are by code, with their templates. Options are those of a Redis, without federation, each
with its parser and the bounds or words of it; a default is the text that a user would give, null
where there is none. Numbers end in their unit
where they have one.
"""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import fields
from typing import Any

from busmq_spark import __version__, errors, option_parsing, options
from busmq_spark.errors import BusError, DataLoss
from busmq_spark.groups import topic
from busmq_spark.option_parsing import KAFKA_CLIENT_HINT, KAFKA_OPTION_HINTS, SPARK_ENGINE_OPTIONS
from busmq_spark.queue import keys, message, queue, retention
from busmq_spark.reading import (
    batch_planner,
    offsets,
    range_reader,
    reader_operations,
    reader_record,
    times_of_ids,
)
from busmq_spark.redis_io import (
    cluster_rules,
    connection_factory,
    lease_token,
    moving_endpoints,
    optional_commands,
    retry,
    slots,
    translate,
    urls,
)
from busmq_spark.spark import compat, data_source, schema
from busmq_spark.spark.read import acquisition, planning, reader_threads
from busmq_spark.spark.write import committer, sink_columns, tasks
from busmq_spark.store import redis_range
from busmq_spark.writing import sink, sink_rollback, sink_runs
from tests.jvm.module import MODULE

FILE = MODULE / "src" / "main" / "resources" / "busmq" / "spark" / "contract.json"


def contract() -> dict[str, Any]:
    """Everything, as it is to stand in the file."""
    return {
        "version": __version__,
        "errors": {
            cls.code: _error(cls)
            for cls in vars(errors).values()
            if isinstance(cls, type) and issubclass(cls, BusError)
        },
        "options": {"read": _options(options.ReadOptions), "write": _options(options.WriteOptions)},
        "engineOptions": sorted(SPARK_ENGINE_OPTIONS),
        "kafkaOptionHints": KAFKA_OPTION_HINTS,
        "numbers": {**_of_queues(), **_of_links(), **_of_streams()},
        "texts": _texts(),
        "replyCodes": {word: cls.code for word, cls in translate.ERROR_OF_REPLY_CODE.items()},
        "replySentences": {words: cls.code for words, cls in translate.ERROR_OF_SENTENCE.items()},
        "sets": {"keylessCommands": sorted(slots._KEYLESS_COMMANDS)},
        "units": {
            "seconds": option_parsing._SECONDS_OF_UNIT,
            "bytes": option_parsing._BYTES_OF_UNIT,
        },
    }


def text() -> str:
    """The file."""
    return json.dumps(contract(), indent=2, ensure_ascii=False) + "\n"


def _error(cls: type[BusError]) -> dict[str, Any]:
    template = (
        cls.template.replace("{cause}", cls.cause) if issubclass(cls, DataLoss) else cls.template
    )
    return {"retriable": cls.retriable, "template": template}


def _options(cls: type[Any]) -> dict[str, Any]:
    rows = [(row.metadata, row.default) for row in fields(cls)]
    return {
        info["name"]: {
            "alias": info["alias"],
            "default": _default(default),
            "parser": info["parse"].__qualname__.partition(".")[0],
            **_bounds(info["parse"]),
        }
        for info, default in rows
        if "federation." not in info["name"]
    }


def _bounds(parser: Any) -> dict[str, Any]:
    """Return the arguments that a parser was made with: the bounds of a number, or words."""
    made_with = inspect.getclosurevars(parser).nonlocals
    return {name: [*value] if name == "words" else value for name, value in made_with.items()}


def _default(value: Any) -> str | None:
    if value in (None, ()):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_queues() -> dict[str, int]:
    return {
        "maxId": message.MAX_ID,
        "maxValueBytes": message.MAX_VALUE_BYTES,
        "chunkMessages": message.CHUNK_MESSAGES,
        "chunkBytes": message.CHUNK_BYTES,
        "minRecordTtlS": queue.MIN_RECORD_TTL_S,
        "maxMessagesPerAck": queue.MAX_MESSAGES_PER_ACK,
        "maxPartitions": topic.MAX_PARTITIONS,
        "topicRecordTtlS": topic.TOPIC_RECORD_TTL_S,
        "stageTtlS": sink.STAGE_TTL_S,
        "maxRowsPerCommit": sink.MAX_ROWS_PER_COMMIT,
        "chunksPerCommit": sink.CHUNKS_PER_COMMIT,
        "maxQueuesPerCommit": sink.MAX_QUEUES_PER_COMMIT,
        "namesPerCall": sink_runs.NAMES_PER_CALL,
        "maxQueuesInError": sink._MAX_QUEUES_IN_ERROR,
        "queuesPerCall": reader_operations.QUEUES_PER_CALL,
        "agesPerCall": times_of_ids.AGES_PER_CALL,
        "pairsPerCall": times_of_ids.PAIRS_PER_CALL,
        "minPairsPerQueue": times_of_ids.MIN_PAIRS_PER_QUEUE,
        "maxPairsPerQuestion": times_of_ids.MAX_PAIRS_PER_QUESTION,
        "stateItems": reader_operations._STATE_ITEMS,
        "sampleEveryMessages": reader_operations.SAMPLE_EVERY_MESSAGES,
        "maxLongestToMeanPercent": round(100 * reader_operations.MAX_LONGEST_TO_MEAN_RATIO),
        "minSampleRun": reader_operations.MIN_SAMPLE_RUN,
        "maxSampleRun": reader_operations.MAX_SAMPLE_RUN,
        "largeMessageBytes": reader_operations.LARGE_MESSAGE_BYTES,
        "minSamplePlaces": reader_operations.MIN_SAMPLE_PLACES,
        "maxSamplePlaces": reader_operations.MAX_SAMPLE_PLACES,
        "samplePlacesPerCall": reader_operations.SAMPLE_PLACES_PER_CALL,
        "firstReplyRows": range_reader.FIRST_REPLY_ROWS,
        "replyGrowthFactor": range_reader.REPLY_GROWTH_FACTOR,
        "deepWindowMessages": range_reader.DEEP_WINDOW_MESSAGES,
        "maxReplyRows": range_reader.MAX_REPLY_ROWS,
        "targetReplyBytes": range_reader.TARGET_REPLY_BYTES,
        "maxReplyBytes": range_reader.MAX_REPLY_BYTES,
        "rowsOfUnknownSize": range_reader.ROWS_OF_UNKNOWN_SIZE,
        "rowsNotWorthCounting": range_reader.ROWS_NOT_WORTH_COUNTING,
        "maxCountedRows": range_reader.MAX_COUNTED_ROWS,
        "messagesPerLrange": range_reader.MESSAGES_PER_LRANGE,
        "messagesPerDeepLrange": range_reader.MESSAGES_PER_DEEP_LRANGE,
        "maxMisses": redis_range.MAX_MISSES,
        "shortRangeRows": redis_range.SHORT_RANGE_ROWS,
        "shortRangeBytes": redis_range.SHORT_RANGE_BYTES,
        "maxShortRangesPerRoundTrip": redis_range.MAX_SHORT_RANGES_PER_ROUND_TRIP,
        "maxShortRowsPerRoundTrip": redis_range.MAX_SHORT_ROWS_PER_ROUND_TRIP,
    }


def _of_links() -> dict[str, int]:
    return {
        "connectMs": _ms(connection_factory.CONNECT_TIMEOUT_S),
        "replyMs": _ms(connection_factory.REPLY_TIMEOUT_S),
        "nodeTimeoutMs": _ms(moving_endpoints._LOOK_UP_TIMEOUT_S),
        "patienceMs": _ms(retry.PATIENCE_S),
        "failoverPatienceMs": _ms(retry.FAILOVER_PATIENCE_S),
        "firstPauseMs": _ms(retry.PAUSES_S[0]),
        "maxPauseMs": _ms(retry.PAUSES_S[1]),
        "maxRedirections": cluster_rules._MAX_REDIRECTIONS,
        "port": urls.DEFAULT_PORT,
        "sentinelPort": urls.SENTINEL_PORT,
        "leaseMs": lease_token.LEASE_MS,
    }


def _of_streams() -> dict[str, int]:
    return {
        "stoppingReaderGraceMs": _ms(acquisition.STOPPING_READER_GRACE_S),
        "renewalRetryMs": _ms(tasks.RENEWAL_RETRY_S),
        "leaseRetryPauseMs": _ms(acquisition.LEASE_RETRY_PAUSE_S),
        "discoveryIntervalMs": _ms(reader_threads.DISCOVERY_INTERVAL_S),
        "scanStepPauseMs": _ms(reader_threads.SCAN_STEP_PAUSE_S),
        "pushWaitMs": _ms(planning.PUSH_WAIT_S),
        "idleBeforeEmptyBatchMs": _ms(planning.IDLE_BEFORE_EMPTY_BATCH_S),
        "maxEmptyBatches": planning.MAX_EMPTY_BATCHES,
        "synchronousAckCommits": planning.SYNCHRONOUS_ACK_COMMITS,
        "shortTtlS": acquisition.SHORT_TTL_S,
        "maxUnpackedRanges": batch_planner.MAX_UNPACKED_RANGES,
        "rowsPerPackedTask": batch_planner.ROWS_PER_PACKED_TASK,
        "offsetVersion": offsets.OFFSET_VERSION,
        "queuesPerAnnouncement": reader_operations.QUEUES_PER_ANNOUNCEMENT,
        "readerRecordBytes": reader_record.RECORD_BYTES,
        "readerMaxText": reader_record.MAX_TEXT,
        "rowsPerRecordBatch": compat.ROWS_PER_RECORD_BATCH,
        "committedBatchVersion": sink_rollback.COMMITTED_BATCH_VERSION,
        "maxNotedQueues": sink_rollback.MAX_NOTED_QUEUES,
        "recordExpiresMs": sink_rollback.RECORD_EXPIRES_MS,
        "maxShownCharacters": committer.MAX_SHOWN_CHARACTERS,
    }


def _texts() -> dict[str, str]:
    return {
        "kafkaClientHint": KAFKA_CLIENT_HINT,
        "queuePrefix": keys.QUEUE_PREFIX,
        "metadataSuffix": keys.METADATA_SUFFIX,
        "topicPrefix": keys.TOPIC_PREFIX,
        "looksLikeKeySuffix": keys.LOOKS_LIKE_KEY_SUFFIX.pattern,
        "forbiddenInName": keys._FORBIDDEN_IN_NAME.pattern,
        "nullTopicRemedy": sink_columns.NULL_TOPIC_REMEDY,
        "nullKeyRemedy": sink_columns.NULL_KEY_REMEDY,
        "partitionsUnused": options.PARTITIONS_UNUSED_REASON,
        "sentinelMaster": urls.DEFAULT_MASTER,
        "restartRemedy": sink.RESTART_REMEDY,
        "abandonBatchRemedy": sink._ABANDON_BATCH_REMEDY,
        "recordLostRemedy": sink._RECORD_LOST_REMEDY,
        "checkpointOlderRemedy": sink._CHECKPOINT_OLDER_REMEDY,
        "equalNamesReason": schema.EQUAL_NAMES_REASON,
        "twoWritesRemedy": sink._TWO_WRITES_REMEDY,
        "committedBatchFile": sink_rollback.COMMITTED_BATCH_FILE,
        "spanCheckpoint": sink._SPAN_CHECKPOINT,
        "otherGroupKindRemedy": reader_operations._OTHER_GROUP_KIND_REMEDY,
        "oneGroupRemedy": reader_operations._ONE_GROUP_REMEDY,
        "messagesTakenWarning": retention.MESSAGES_TAKEN_WARNING,
        "queryVariesRemedy": sink._QUERY_VARIES_REMEDY,
        "pythonValue": option_parsing.PYTHON_VALUE.pattern,
        "pythonTuple": option_parsing.PYTHON_TUPLE.pattern,
        "pythonValueProblem": option_parsing.PYTHON_VALUE_PROBLEM,
        "jarVersionOption": data_source.VERSION_OPTION,
        "policyUnknown": optional_commands.POLICY_UNKNOWN,
        "wrongLoginText": translate._WRONG_LOGIN_TEXT,
    }


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


if __name__ == "__main__":
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(text())
    else:
        FILE.write_text(text())
