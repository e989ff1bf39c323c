"""push, peek and tail: what goes in comes out, byte for byte, and stays unless it is taken on
purpose.
"""

from __future__ import annotations

import base64
import signal
from pathlib import Path

import pytest

from busmq_spark.cli.output import CliOutput
from busmq_spark.cli.push import CliPusher
from busmq_spark.cli.queue_lookup import CliQueueFull, LocatedQueue
from busmq_spark.errors import QueueMissing
from busmq_spark.options import Durability
from busmq_spark.queue.keys import QueueKeys
from busmq_spark.queue.queue import ack, attach, delete, pop, push_many
from busmq_spark.reading.reader_operations import lease
from busmq_spark.redis_io.lease_token import this_machine
from busmq_spark.redis_io.sync_link import SyncLink
from tests.cli.conftest import Busmq, Start, line_of
from tests.conftest import Fresh, FreshKeys
from tests.replicated import SOON, count, running_pair
from tests.support import PATIENCE_S, wait_until

pytestmark = pytest.mark.redis
BINARY = b"\xff\xfe\x00 not text"
NASTY = "\x1b[31mred\x07 [bold]markup[/bold] \u202egnp.exe\nsecond line"


def test_push_creates_the_queue_and_says_what_is_there(busmq: Busmq, fresh: Fresh) -> None:
    queue = fresh()
    [first] = busmq("push", queue, "a", "b", "--json", "--ttl", "2h", "--maxsize", "9").records
    assert first["server"].startswith("redis://127.0.0.1:")
    del first["server"]
    assert first == {"queue": queue, "pushed": 2, "newest_id": 2, "messages": 2, "created": True}
    assert (
        busmq("push", queue, "c").text
        == f"Pushed 1 message to queue {queue}: 3 stored, newest id 3.\n"
    )
    [state] = busmq("info", queue, "--json").records
    assert (state["ttl_s"], state["maxsize"]) == (7200, 9)


def test_every_line_of_stdin_is_a_message_and_no_byte_is_changed(
    busmq: Busmq, fresh: Fresh
) -> None:
    queue = fresh()
    lines = [
        b"plain",
        b"",
        b"  spaces \t",
        BINARY,
        b"crlf\r",
        "žluťoučký".encode(),
        b"no line break at the end",
    ]
    assert busmq("push", queue, "-", stdin=b"\n".join(lines)).code == 0
    assert busmq("peek", queue, "--raw").out == b"".join(line + b"\n" for line in lines)


def test_null_separated_messages_may_hold_line_breaks(busmq: Busmq, fresh: Fresh) -> None:
    queue = fresh()
    assert busmq("push", queue, "--null", stdin=b"one\ntwo\0three\0").code == 0
    assert [record["value"] for record in busmq("peek", queue, "--json").records] == [
        "one\ntwo",
        "three",
    ]
    assert busmq("peek", queue, "--raw", "--null").out == b"one\ntwo\0three\0"


def test_a_whole_file_can_be_one_message(busmq: Busmq, fresh: Fresh, tmp_path: Path) -> None:
    queue = fresh()
    path = tmp_path / "body"
    path.write_bytes(b"line\nline\n" + BINARY)
    assert busmq("push", queue, "--whole", "--file", str(path)).code == 0
    assert busmq("peek", queue, "--raw").out == path.read_bytes() + b"\n"


def test_json_gives_binary_values_in_base64(busmq: Busmq, fresh: Fresh) -> None:
    queue = fresh()
    busmq("push", queue, "--whole", stdin=BINARY)
    assert busmq("peek", queue, "--json").records == [
        {"queue": queue, "id": 1, "value_base64": base64.b64encode(BINARY).decode()}
    ]


def test_values_cannot_reach_the_terminal_as_control_characters_or_markup(
    busmq: Busmq, fresh: Fresh
) -> None:
    queue = fresh() + "\x1b[2J"
    busmq("push", queue, NASTY)
    for command in (
        ("peek", queue),
        ("tail", queue, "--no-follow"),
        ("queues",),
        ("info", queue),
        ("push", queue, "x"),
    ):
        shown = busmq(*command)
        assert set(shown.text + shown.err) & set("\x1b\x07\u202e") == set(), command
    assert (
        "\\e[31mred\\x07 [bold]markup[/bold] \\u202egnp.exe\\nsecond line"
        in busmq("peek", queue).text
    )


def test_peek_shows_the_oldest_the_newest_or_ids_and_removes_nothing(
    busmq: Busmq, fresh: Fresh
) -> None:
    queue = fresh()
    busmq("push", queue, stdin=b"\n".join(b"%d" % number for number in range(1, 1001)))

    def ids(*arguments: str) -> list[int]:
        return [record["id"] for record in busmq("peek", queue, "--json", *arguments).records]

    assert ids() == list(range(1, 11))
    assert ids("--first", "3") == [1, 2, 3]
    assert ids("--last", "3") == [998, 999, 1000]
    assert ids("--id", "500") == [500]
    assert ids("--id", "7..9") == [7, 8, 9]
    assert ids("--id", "999..") == [999, 1000]
    assert ids("--id", "..2") == [1, 2]
    assert ids("--first", "5000") == list(range(1, 1001))


def test_peek_passes_over_holes(busmq: Busmq, fresh_keys: FreshKeys, link: SyncLink) -> None:
    keys = fresh_keys()
    link.run(attach(keys, "life", ttl_s=60))
    link.run(push_many(keys, [b"%d" % number for number in range(1, 8)]))
    link.run(pop(keys, reliable=True, ttl_s=60, most=3))
    link.run(pop(keys, most=2))
    link.run(ack(keys, 1, ttl_s=60, restore=True))  # ids 2 and 3 are back, 4 and 5 are not
    assert [record["id"] for record in busmq("peek", keys.name, "--json").records] == [2, 3, 6, 7]
    assert [
        record["id"] for record in busmq("peek", keys.name, "--id", "3..6", "--json").records
    ] == [3, 6]


def test_an_id_that_is_not_stored_is_an_error(busmq: Busmq, fresh: Fresh) -> None:
    queue = fresh()
    busmq("push", queue, "a")
    done = busmq("peek", queue, "--id", "5", "--json")
    assert (done.code, done.out, done.error["code"]) == (1, b"", "BUSMQ_MESSAGE_MISSING")


def test_tail_follows_without_removing(busmq: Busmq, start: Start, fresh: Fresh) -> None:
    queue = fresh()
    busmq("push", queue, "1", "2", "3")
    tail = start("tail", queue, "-n", "1", "-c", "3", "--json")
    assert b'"id": 3,' in line_of(tail)
    busmq("push", queue, "4", "5")
    assert [b'"id": 4,' in line_of(tail), b'"id": 5,' in line_of(tail)] == [True, True]
    assert tail.wait(PATIENCE_S) == 0
    assert busmq("info", queue, "--json").records[0]["messages"] == 5


def test_tail_shows_only_new_messages_with_n_0_and_from_an_id_with_from(
    busmq: Busmq, fresh: Fresh
) -> None:
    queue = fresh()
    busmq("push", queue, "1", "2", "3")
    assert busmq("tail", queue, "-n", "0", "--no-follow").out == b""
    assert [
        record["id"]
        for record in busmq("tail", queue, "--from", "2", "--no-follow", "--json").records
    ] == [2, 3]


def test_tail_says_when_the_queue_was_created_again(
    busmq: Busmq, start: Start, fresh_keys: FreshKeys, link: SyncLink
) -> None:
    keys = fresh_keys()
    busmq("push", keys.name, "1", "2")
    tail = start("tail", keys.name, "-c", "3", "--json")
    assert [b'"id": 1,' in line_of(tail), b'"id": 2,' in line_of(tail)] == [True, True]
    link.run(delete(keys))
    busmq("push", keys.name, "new life")
    out, err = tail.communicate(timeout=PATIENCE_S)
    assert b'"new life"' in out
    assert b"created again" in err


def test_consume_takes_messages_out(busmq: Busmq, fresh: Fresh) -> None:
    queue = fresh()
    busmq("push", queue, "1", "2", "3")
    assert [
        record["id"] for record in busmq("tail", queue, "--consume", "-c", "2", "--json").records
    ] == [1, 2]
    assert [
        record["id"]
        for record in busmq("tail", queue, "--consume", "--no-follow", "--json").records
    ] == [3]
    assert busmq("info", queue, "--json").records[0]["messages"] == 0


def test_a_reliable_tail_that_is_interrupted_loses_nothing(
    busmq: Busmq, start: Start, fresh: Fresh
) -> None:
    queue = fresh()
    busmq("push", queue, stdin=b"\n".join(b"%06d" % number for number in range(1, 30_001)))
    tail = start("tail", queue, "--reliable", "--raw")
    assert tail.stdout is not None
    first = tail.stdout.read(7 * 2000)
    tail.send_signal(signal.SIGINT)  # while it waits for room in the pipe
    first += tail.stdout.read()
    assert tail.wait(PATIENCE_S) == 130
    rest = [
        int(line) for line in busmq("tail", queue, "--reliable", "--raw", "--no-follow").out.split()
    ]
    written = len(first) // 7
    assert rest == list(range(rest[0], 30_001))
    assert written - 1000 <= rest[0] - 1 <= written
    [state] = busmq("info", queue, "--json").records
    assert (state["messages"], state["unacked"]) == (0, 0)


def test_messages_are_not_taken_from_under_a_running_query(
    busmq: Busmq, fresh_keys: FreshKeys, link: SyncLink
) -> None:
    keys = fresh_keys()
    busmq("push", keys.name, "1")
    link.run(lease([keys], "", "a reader|of another machine|1|2", 600_000, [""]))
    done = busmq("tail", keys.name, "--consume", "--no-follow", "--json")
    assert (done.code, done.error["code"]) == (1, "BUSMQ_QUEUE_BUSY")
    assert busmq("queues", keys.name, "--json").records[0]["readers"][0]["subscription"] is None
    assert busmq("tail", keys.name, "--no-follow", "--json").records[0]["id"] == 1
    link.run(
        lease(
            [keys],
            "",
            f"dead|{this_machine()}|{2**22}.1|1.1",
            30_000,
            ["a reader|of another machine|1|2"],
        )
    )
    assert busmq("queues", keys.name, "--json").records[0]["readers"] == []
    assert busmq("tail", keys.name, "--consume", "--no-follow").code == 0


def test_a_full_queue_is_an_error_that_says_what_was_stored(busmq: Busmq, fresh: Fresh) -> None:
    done = busmq("push", fresh(), "1", "2", "3", "--maxsize", "2", "--json")
    assert (
        done.code,
        done.error["code"],
        done.error["details"]["stored"],
        done.error["details"]["left"],
    ) == (1, "BUSMQ_QUEUE_FULL", 2, 1)


def test_a_closed_pipe_ends_the_command_without_a_word(
    busmq: Busmq, start: Start, fresh: Fresh
) -> None:
    queue = fresh()
    busmq("push", queue, stdin=b"\n".join([b"y" * 100] * 20_000))
    for command in (["peek", queue, "--first", "20000"], ["tail", queue]):
        process = start(*command)
        assert line_of(process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.wait(PATIENCE_S), process.stderr.read()) == (0, b""), command


def test_colours_asked_for_by_the_environment_change_nothing_else(
    busmq: Busmq, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = fresh()
    busmq("push", queue, "x" * 3000)
    plain = busmq("peek", queue).text
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in Jupyter and many CI systems
    assert busmq("peek", queue).text == plain
    assert max(len(line) for line in busmq("info", queue, "--json").text.splitlines()) > 100
    assert busmq("push", queue, stdin=b"\n".join([b"y"] * 50_000)).err == ""


def test_lines_are_pushed_as_they_come(busmq: Busmq, start: Start, fresh: Fresh) -> None:
    queue = fresh()
    push = start("push", queue, "--json")
    assert push.stdin is not None
    push.stdin.write(b"first\nsec")
    push.stdin.flush()
    wait_until(lambda: busmq("peek", queue, "--raw").out == b"first\n")
    out, _ = push.communicate(b"ond", timeout=PATIENCE_S)
    assert b'"pushed": 2' in out


def test_a_durable_push_is_on_the_replica_or_refused_in_one_line(busmq: Busmq) -> None:
    with running_pair() as pair:
        at, url = ("--durability", "replicated"), pair.master.url
        assert busmq("push", "orders", "a", "b", *at, url=url).code == 0
        assert count(pair.replica, "orders") == 2
        refused = busmq("push", "orders", "c", *at, "--replicas", "2", "--json", url=url)
        assert refused.error["code"] == "BUSMQ_TOO_FEW_REPLICAS"
        pair.between.hush()
        short = busmq("push", "orders", "c", *at, "--durability-timeout", "1s", "--json", url=url)
        assert short.error["code"] == "BUSMQ_NOT_REPLICATED"
        assert (count(pair.master, "orders"), count(pair.replica, "orders")) == (3, 2)


def test_a_full_or_missing_queue_is_named_when_no_replica_confirms() -> None:
    with running_pair() as pair:
        pair.heal()
        keys, link, out = QueueKeys("orders", False), pair.link(), CliOutput(True)
        attached = link.run(attach(keys, "life", ttl_s=100, maxsize=1))
        place = LocatedQueue(keys, link)
        pusher = CliPusher(out, place, attached, Durability("replicated", 1, SOON))
        pusher.push([b"a"])
        pair.between.hush()
        with pytest.raises(CliQueueFull):
            pusher.push([b"b"])
        link.run(delete(keys))
        with pytest.raises(QueueMissing):
            pusher.push([b"b"])
