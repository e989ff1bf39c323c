"""What goes wrong is one line that says what to do, with an exit code that a script can rely on."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import busmq_spark
from busmq_spark.cli.queue_lookup import CliQueueMissing, MessageMissing
from busmq_spark.embedded import EmbeddedRedis
from busmq_spark.redis_io.urls import PasswordInFile
from tests.cli.conftest import Busmq, Start, environment, line_of
from tests.conftest import Fresh
from tests.support import PATIENCE_S, wait_until

pytestmark = pytest.mark.redis
COMMANDS = [
    "demo",
    "embedded",
    "push",
    "tail",
    "peek",
    "queues",
    "info",
    "lag",
    "retain",
    "serve",
    "token",
    "jar",
]


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_version_and_help(busmq: Busmq) -> None:
    assert busmq("--version").text == f"busmq {busmq_spark.__version__}\n"
    for page in (busmq(), busmq("--help")):
        assert page.code == 0
        assert all(command in page.text for command in COMMANDS)
        assert "Exit codes" in page.text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(busmq: Busmq, command: str) -> None:
    page = busmq(command, "--help")
    assert page.code == 0
    assert "--json" in page.text
    assert f"busmq {command}" in page.text


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["queues", "--nope"],
        ["peek"],
        ["peek", "q", "--first", "x"],
        ["peek", "q", "--first", "1", "--last", "1"],
        ["peek", "q", "--id", "9..7"],
        ["peek", "q", "--id", "x"],
        ["peek", "q", "--null"],
        ["peek", ""],
        ["push", "q", "x", "--ttl", "soon"],
        ["push", "q", "x", "--whole"],
        ["push", "q", "--file", "/no/such/file"],
        ["tail", "q", "-n", "1", "--consume"],
        ["embedded", "--aof"],
        ["demo", "--output", "/no/such/folder/plot.png"],
    ],
    ids=" ".join,
)
def test_a_wrong_option_or_argument_is_exit_code_2(busmq: Busmq, arguments: list[str]) -> None:
    plain, as_json = busmq(*arguments), busmq(*arguments, "--json")
    assert (plain.code, plain.out) == (2, b"")
    assert plain.err.startswith("error: [BUSMQ_")
    assert plain.err.count("\n") == 1
    assert (as_json.code, as_json.out) == (2, b"")
    assert as_json.error["code"] in ("BUSMQ_USAGE", "BUSMQ_CONFIG")
    assert as_json.error["message"]


def test_no_redis_named_is_exit_code_2_with_a_way_on(busmq: Busmq) -> None:
    done = busmq("queues", url=None)
    assert done.code == 2
    assert "busmq embedded" in done.err


@pytest.mark.parametrize(
    "url", ["localhost", "http://localhost", "redis://:hunter2@host:port", "redis://user:hunter2@"]
)
def test_a_bad_url_is_exit_code_2_and_shows_no_password(busmq: Busmq, url: str) -> None:
    for done in (busmq("queues", "--redis", url), busmq("queues", "--json", url=url)):
        assert done.code == 2
        assert "hunter2" not in done.err
        assert "BUSMQ_CONFIG" in done.err


def test_an_absent_server_is_exit_code_1_soon(busmq: Busmq) -> None:
    done = busmq("queues", "--redis", f"redis://:hunter2@127.0.0.1:{closed_port()}", "--json")
    assert (done.code, done.error["code"], done.error["retriable"]) == (1, "BUSMQ_LINK_LOST", True)
    assert "hunter2" not in done.err


def test_a_wrong_password_is_exit_code_1_and_not_shown(busmq: Busmq) -> None:
    with EmbeddedRedis(password="right-one") as server:
        for wrong in (
            server.url.replace("right-one", "hunter2"),
            f"redis://127.0.0.1:{server.port}",
        ):
            done = busmq("push", "q", "x", "--json", url=wrong)
            assert (done.code, done.error["code"]) == (1, "BUSMQ_UNAUTHORIZED")
            assert "hunter2" not in done.err
        done = busmq("info", url=server.url)
        assert done.code == 0
        assert "right-one" not in done.text + done.err


@pytest.mark.parametrize("command", ["peek", "tail", "info"])
def test_an_unknown_queue_is_exit_code_1(busmq: Busmq, fresh: Fresh, command: str) -> None:
    queue = fresh("no such queue")
    done = busmq(command, queue, "--json")
    assert (done.code, done.out, done.error["code"]) == (1, b"", "BUSMQ_QUEUE_MISSING")
    assert f"busmq push '{queue}'" in done.error["message"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_without_a_stack_trace(
    busmq: Busmq, start: Start, fresh: Fresh, number: signal.Signals, code: int
) -> None:
    queue = fresh()
    busmq("push", queue, "x")
    tail = start("tail", queue, "--json")
    assert json.loads(line_of(tail))["value"] == "x"
    tail.send_signal(number)
    out, err = tail.communicate(timeout=PATIENCE_S)
    assert (tail.returncode, out, err) == (code, b"", b"")


def test_ctrl_c_ends_a_push_from_a_pipe_and_a_mirror_with_one_line(
    busmq: Busmq, start: Start, fresh: Fresh, redis_url: str
) -> None:
    queue = fresh()
    push = start("push", queue)
    assert push.stdin is not None
    push.stdin.write(b"x\n" * 20_001)
    push.stdin.flush()
    wait_until(lambda: busmq("info", queue, "--json").code == 0, what="something is stored")
    push.send_signal(signal.SIGINT)
    push.wait(PATIENCE_S)
    _, err = push.communicate()
    assert (push.returncode, err.count(b"\n"), b"messages had been stored" in err) == (130, 1, True)
    with EmbeddedRedis() as here:
        mirror = start("mirror", "--from", redis_url, queue, url=here.url)
        assert mirror.stderr is not None
        assert b"Mirroring" in mirror.stderr.readline()
        mirror.send_signal(signal.SIGINT)
        _, err = mirror.communicate(timeout=PATIENCE_S)
    assert (mirror.returncode, err) == (130, b"")


@pytest.mark.parametrize(
    ("line", "code"),
    [("--version >&-", 0), ("queues 2>&-", 2), ("push q --redis redis://127.0.0.1 <&-", 2)],
)
def test_a_closed_stream_is_no_reason_to_crash(line: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m busmq_spark {line}"],
        env=environment(None),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)


def test_errors_of_the_command_line_pickle_like_all_others() -> None:
    for error in (
        CliQueueMissing(queue="a b", servers="x"),
        MessageMissing(queue="q", wanted="id 1", found="none"),
    ):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_password_comes_from_a_file_and_is_read_for_each_connection(
    busmq: Busmq, start: Start, tmp_path: Path
) -> None:
    (file := tmp_path / "password").write_text("first-one\n")
    with EmbeddedRedis() as server:
        server.command("ACL", "SETUSER", "me", "on", ">first-one", "~*", "&*", "+@all")
        url = f"redis://127.0.0.1:{server.port}"
        words = ("--redis", url, "--user", "me", "--password-file", str(file))
        assert busmq("push", "q", "a", *words, url=None).code == 0
        tail = start("tail", "q", "--consume", "--raw", *words)
        assert line_of(tail) == b"a\n"
        file.write_text("second-one")
        server.command("ACL", "SETUSER", "me", "resetpass", ">second-one")
        server.command("CLIENT", "KILL", "USER", "me")
        assert busmq("push", "q", "b", *words, url=None).code == 0
        assert line_of(tail) == b"b\n"
        password = PasswordInFile(file)
        file.write_text("third-one")
        assert password.read() == "third-one"
        file.write_text("")
        assert password.read() == "third-one", "the one read last, while it is being written"
    for text, said in ((b"", "is empty"), (b"x\n\n", "line break"), (b"\xff", "not UTF-8")):
        file.write_bytes(text)
        done = busmq("queues", *words, "--json", url=None)
        assert (done.code, done.error["code"]) == (2, "BUSMQ_CONFIG")
        assert said in done.error["message"]
    file.unlink()
    assert "No such file" in busmq("queues", *words, "--json", url=None).error["message"]
