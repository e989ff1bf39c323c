"""``busmq mirror`` as people use it: a process that copies, what it says of itself, and a
promotion.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

from busmq_spark.embedded import EmbeddedRedis
from tests.cli.conftest import Busmq, Start, line_of
from tests.conftest import Fresh
from tests.mirror.centres import centre
from tests.serving import Serving, everything
from tests.support import wait_until

SECRET = "a-secret-of-the-tests"


def test_queues_are_mirrored_looked_at_and_promoted(
    busmq: Busmq, start: Start, fresh: Fresh, redis_url: str
) -> None:
    name = f"{fresh('cli-mirror')}."  # what a pattern begins with is the beginning of no other name
    with EmbeddedRedis() as server, centre(server.url) as far, centre(redis_url) as near:
        far.create(name)
        far.push(name, 20)
        process = start(
            "mirror",
            "--from",
            server.url,
            "--to",
            redis_url,
            f"{name}*",
            "--groups",
            "--metrics",
            "127.0.0.1:0",
            "--json",
            url=None,
        )
        begun = json.loads(line_of(process))
        assert (begun["origin"], begun["patterns"]) == (server.url, [f"{name}*"])
        wait_until(lambda: near.stored(name) == far.stored(name))
        text = urllib.request.urlopen(begun["metrics"]).read().decode()
        assert "busmq_mirror_messages_total 20.0\n" in text
        [found] = busmq("mirror", "status", name, "--json", url=redis_url).records
        assert (
            found["queue"],
            found["origin"],
            found["copied_up_to"],
            found["behind"],
            found["mirrored"],
        ) == (name, server.url, 20, 0, True)
        refused = busmq("push", name, "x", "--json", url=redis_url)
        assert (refused.code, refused.error["code"]) == (1, "BUSMQ_QUEUE_IS_MIRROR")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        far.push(name, 3)
        near.redis(name, "HSET", near.keys(name).metadata, "mirrored", b"20::23")
        done = busmq("mirror", "promote", f"{name}*", "--json", url=redis_url)
        assert done.records == [
            {"queue": name, "promoted_behind": 20, "origin_known_up_to": 23, "not_copied": 3}
        ]
        assert busmq("push", name, "x", url=redis_url).code == 0
        assert near.stored(name)[-1] == (21, b"x")
        again = busmq("mirror", "promote", name, "--json", url=redis_url)
        assert (again.code, again.error["code"]) == (2, "BUSMQ_CONFIG")
        process = start("mirror", "--from", server.url, name, url=redis_url)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, b"")
        said = next(line for line in lines if b"BUSMQ_MIRROR_STOPPED" in line).decode()
        assert (
            "ids 21..23 of its old origin were not copied, and here ids 21..21 were given to others"
            in said
        )
        shown = busmq("mirror", "status", name, url=redis_url)
        assert (shown.code, shown.text) == (0, "")


def test_a_federation_server_is_mirrored_with_the_secret_of_the_environment(
    busmq: Busmq, fresh: Fresh, redis_url: str, tmp_path: Path, start: Start
) -> None:
    name = fresh("cli-mirror")
    with (
        EmbeddedRedis() as server,
        centre(server.url) as far,
        centre(redis_url) as near,
        Serving(server.url, tmp_path, everything(SECRET)) as serving,
    ):
        far.create(name)
        far.push(name, 20)
        start("mirror", "run", "--from", serving.url, "--from-secret", SECRET, name)
        wait_until(lambda: near.stored(name) == far.stored(name))
        wrong = busmq(
            "mirror",
            "--from",
            serving.url,
            "--from-secret",
            "another-secret-of-somebody",
            name,
            "--json",
            url=redis_url,
        )
        assert (wrong.code, wrong.error["code"]) == (1, "BUSMQ_FEDERATION_REFUSED")
        shown = busmq("mirror", "status", url=redis_url)
        assert name in shown.text


def test_what_cannot_work_is_one_line(busmq: Busmq, redis_url: str) -> None:
    for arguments, code in (
        (("mirror", "--from", "http://x", "q"), 2),
        (("mirror", "--from", "redis://x", "--rate", "fast", "q"), 2),
        (("mirror", "--from", "redis://x", "--retention", "some", "q"), 2),
        (("mirror", "--from", "redis://127.0.0.1:1", "q"), 1),
        (("mirror", "run", "q"), 2),
        (("mirror", "promote", "no-such-queue"), 2),
    ):
        done = busmq(*arguments, url=redis_url)
        assert (done.code, done.text, len(done.err.strip().splitlines())) == (
            code,
            "",
            1,
        ), arguments
        assert "Traceback" not in done.err
