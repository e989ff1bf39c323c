"""outbox status | unlock | keys | subscribers | incoming | outgoing | drain: beside the process
that has the store open, and without one.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from busmq_spark.outbox.outbox import SyncOutbox
from tests.cli.conftest import Busmq
from tests.conftest import Fresh
from tests.support import lasting_port, wait_until

pytestmark = pytest.mark.redis


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def nowhere() -> str:
    return f"redis://127.0.0.1:{lasting_port()}"


def test_a_live_store_is_looked_at_and_not_touched(busmq: Busmq, path: Path) -> None:
    with SyncOutbox(path, nowhere()) as outbox:
        outbox.push("orders", 1, 2)
        outbox.push("mail", 3)
        outbox.subscribe(["user.*"], into="emails")
        outbox.publish(["user.signup", "x"], 4)
        [status] = busmq("outbox", "status", str(path), "--json").records
        assert (status["incoming"], status["outgoing"]) == (2, 3)
        assert (status["owner"]["pid"], status["owner"]["host"]) == (
            os.getpid(),
            socket.gethostname(),
        )
        assert status["oldest_s"] >= 0
        assert status["bytes"] > 0
        assert (
            f"process {os.getpid()} on {socket.gethostname()}"
            in busmq("outbox", "status", str(path)).text
        )
        assert {
            each["queue"]: each["messages"]
            for each in busmq("outbox", "outgoing", str(path), "--json").records
        } == {"mail": 1, "orders": 2}
        incoming = busmq("outbox", "incoming", str(path), "--json").records
        assert [(each["kind"], each["keys"], each["queue"]) for each in incoming] == [
            ("subscribe", ["user.*"], "emails"),
            ("event", ["user.signup", "x"], ""),
        ]
        wait_until(lambda: "cannot reach" in busmq("outbox", "status", str(path)).text)
        assert "user.signup, x" in busmq("outbox", "incoming", str(path)).text
        assert "orders" in busmq("outbox", "outgoing", str(path)).text
        refused = busmq("outbox", "unlock", str(path), "--json")
        assert (refused.code, refused.error["code"], refused.error["details"]["pid"]) == (
            1,
            "BUSMQ_OUTBOX_BUSY",
            os.getpid(),
        )
        drain = busmq("outbox", "drain", str(path), "--redis", nowhere(), "--json")
        assert (drain.code, drain.error["code"]) == (1, "BUSMQ_OUTBOX_BUSY")
        assert outbox.push("orders", 5).number == 6
    assert busmq("outbox", "status", str(path), "--json").records[0]["owner"] is None


def test_drain_forwards_everything_and_what_it_saw_is_shown(
    busmq: Busmq, path: Path, redis_url: str, fresh: Fresh
) -> None:
    queue, word = fresh("emails"), fresh("k")
    with SyncOutbox(path, nowhere()) as outbox:
        outbox.subscribe([f"{word}.*"], into=queue)
        outbox.publish([f"{word}.signup"], 1)
        outbox.push(queue, 2)
    late = busmq("outbox", "drain", str(path), "--redis", nowhere(), "--timeout", "1", "--json")
    assert (late.code, late.error["code"], late.error["retriable"]) == (
        1,
        "BUSMQ_OUTBOX_WAITS",
        True,
    )
    assert "forwarded 3 messages" in busmq("outbox", "drain", str(path)).text
    assert busmq("outbox", "drain", str(path), "--json").records == [
        {"path": str(path), "forwarded": 0}
    ]
    assert len(busmq("peek", queue, "--json").records) == 2
    assert f"{word}.*" in busmq("outbox", "keys", str(path)).text
    [found] = busmq("outbox", "subscribers", str(path), f"{word}.signup", "--json").records
    assert (found["queue"], found["keys"]) == (queue, [f"{word}.*"])
    assert busmq("outbox", "subscribers", str(path), "another", "--json").records == []
    for command, said in (
        ("incoming", "nothing waits to be routed"),
        ("outgoing", "nothing waits for a queue"),
        ("unlock", "it was not locked"),
    ):
        done = busmq("outbox", command, str(path))
        assert (done.code, said in done.err) == (0, True)


def test_an_outbox_without_subscriptions_says_so(busmq: Busmq, path: Path) -> None:
    with SyncOutbox(path, nowhere()):
        pass
    for command in ("keys", "subscribers"):
        done = busmq("outbox", command, str(path))
        assert (done.code, done.out, "no queue is subscribed" in done.err) == (0, b"", True)


@pytest.mark.parametrize(
    "command", ["status", "unlock", "keys", "subscribers", "incoming", "outgoing", "drain"]
)
def test_what_is_no_outbox_is_said_in_a_line(busmq: Busmq, tmp_path: Path, command: str) -> None:
    text = tmp_path / "text"
    text.write_text("no database" * 1000)
    empty = tmp_path / "empty"
    empty.touch()
    cases = (
        (tmp_path / "missing" / "outbox.db", "there is no such file"),
        (text / "outbox.db", "there is no such file"),
        (text, "it is no SQLite file"),
        (tmp_path, "it is a folder"),
        (empty, "there is nothing in it yet"),
    )
    for path, said in cases:
        done = busmq("outbox", command, str(path), "--json")
        assert (done.code, done.error["code"]) == (1, "BUSMQ_OUTBOX_UNUSABLE"), path
        assert said in done.error["message"]
        assert done.out == b""
    assert busmq("outbox", command).code == 2
    assert text.read_text() == "no database" * 1000
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "text"]


def test_wrong_arguments_are_exit_code_2(busmq: Busmq, path: Path) -> None:
    with SyncOutbox(path, nowhere()):
        pass
    for arguments in (
        ["drain", str(path), "--timeout", "soon"],
        ["drain", str(path), "--redis", "http://x"],
        ["incoming", str(path), "-n", "0"],
    ):
        assert busmq("outbox", *arguments).code == 2, arguments
    assert busmq("outbox", "drain", str(path), url=None).code == 2


@pytest.mark.parametrize(
    "command", ["status", "incoming", "outgoing", "keys", "subscribers", "unlock", "drain"]
)
def test_commands_take_a_symlink_and_say_why_a_hard_link_will_not_do(
    busmq: Busmq, path: Path, redis_url: str, command: str
) -> None:
    link = path.with_name("link.db")
    with SyncOutbox(path, nowhere()) as outbox:
        outbox.push("q", 1)
    more = ["--redis", redis_url] if command == "drain" else []
    link.symlink_to(path)
    assert not busmq("outbox", command, str(link), "--json", *more).code
    link.unlink()
    link.hardlink_to(path)
    refused = busmq("outbox", command, str(link), "--json", *more)
    assert (refused.code, refused.error["code"]) == (1, "BUSMQ_OUTBOX_UNUSABLE")
    assert "2 names" in refused.error["message"]


def test_the_commands_show_ids_and_contents_and_change_a_closed_outbox(
    busmq: Busmq, path: Path
) -> None:
    with SyncOutbox(path, nowhere()) as outbox:
        outbox.push("orders", "one", "two")
        sent = outbox.publish(["signup"], {"user": 7})
        busy = busmq("outbox", "purge", str(path), "--yes", "--json")
        assert (busy.code, busy.error["code"]) == (1, "BUSMQ_OUTBOX_BUSY")
        [event] = busmq("outbox", "incoming", str(path), "--json").records
        assert event["id"] == sent.ids[0]
        assert json.loads(event["value"])["data"] == {"user": 7}
        assert sent.ids[0] in busmq("outbox", "incoming", str(path)).text
    assert "two" in busmq("outbox", "outgoing", str(path), "orders").text
    listed = busmq("outbox", "outgoing", str(path), "--messages", "--json").records
    assert [(each["number"], each["kind"]) for each in listed] == [
        (1, "message"),
        (2, "message"),
        (3, "event"),
    ]
    assert busmq("outbox", "replace", str(path), "1", "uno").code == 0
    assert busmq("outbox", "replace", str(path), "3", '{"user": 8}').code == 0
    assert busmq("outbox", "remove", str(path), "2", "--yes").code == 0
    missing = busmq("outbox", "remove", str(path), "2", "--yes", "--json")
    assert (missing.code, missing.error["code"]) == (2, "BUSMQ_CONFIG")
    left = busmq("outbox", "outgoing", str(path), "--messages", "--json").records
    assert [each["number"] for each in left] == [1, 3]
    assert json.loads(left[1]["value"])["data"] == {"user": 8}
    refused = busmq("outbox", "purge", str(path), "--json")
    assert (refused.code, "--yes" in refused.error["message"]) == (2, True)
    assert (
        busmq("outbox", "purge", str(path), "orders", "--yes", "--json").records[0]["purged"] == 1
    )
    assert busmq("outbox", "purge", str(path), "--yes", "--json").records[0]["purged"] == 1
