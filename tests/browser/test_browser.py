"""The browser client that npm busmq publishes, unchanged, in a real Chromium, against our
federation server.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from busmq_spark import Bus
from busmq_spark.bus.sync import SyncBus
from tests.browser.chromium import Page
from tests.conftest import Fresh
from tests.serving import Serving, everything
from tests.support import PATIENCE_S, lasting_port, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.peer, pytest.mark.timeout(900)]
SECRET = "open-sesame-for-the-browser"  # of this test only
TEXTS = ["plain", "żółć €", "😀", "", '{"n":1}', "line\nbreak", "x" * 20_000]


@pytest.fixture(scope="module")
def serving(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(redis_url, tmp_path_factory.mktemp("serving"), everything(SECRET)) as made:
        yield made


@pytest.fixture
def bus(redis_url: str) -> Iterator[SyncBus]:
    """The other side: a bus on the Redis that the server stands before."""
    with Bus.sync(redis_url) as made:
        yield made


def enter(page: Page, serving: Serving, secret: str = SECRET) -> None:
    """Give the page its ``bus``."""
    page.run("window.bus = busmq(url, secret)", url=serving.url, secret=secret)


def test_queue_pushes_of_a_page_arrive_in_order_with_their_ids(
    page: Page, serving: Serving, bus: SyncBus, fresh: Fresh
) -> None:
    enter(page, serving)
    name = fresh("browser")
    ids = page.run(
        """
        const queue = await made(bus, 'queue', name);
        const attached = told(queue, 'attached');
        queue.attach({ttl: 60});
        await attached;
        return await Promise.all(texts.map((text) => asked(queue, 'push', text)));
        """,
        name=name,
        texts=TEXTS,
    )
    assert ids == list(range(1, len(TEXTS) + 1))
    with bus.queue(name) as queue:
        assert [message.text for message in queue.consume(max=len(TEXTS))] == TEXTS


def test_queue_messages_reach_a_page_in_order_and_its_acks_count(
    page: Page, serving: Serving, bus: SyncBus, fresh: Fresh
) -> None:
    enter(page, serving)
    name = fresh("browser")
    with bus.queue(name) as queue:
        queue.push_many(TEXTS)
        got = page.run(
            """
            const queue = await made(bus, 'queue', name), got = [];
            queue.on('message', (text, id) => got.push([id, text]));
            const attached = told(queue, 'attached');
            queue.attach({ttl: 60});
            await attached;
            queue.consume({reliable: true});
            await until(() => got.length === many);
            queue.ack(many - 2, () => {});
            await asked(queue, 'count');
            const detached = told(queue, 'detached');
            queue.detach();
            await detached;
            return got;
            """,
            name=name,
            many=len(TEXTS),
        )
        assert got == [[number, text] for number, text in enumerate(TEXTS, 1)]
        assert [message.id for message in queue.consume(reliable=True, max=2)] == [
            len(TEXTS) - 1,
            len(TEXTS),
        ]


def test_channel_between_a_page_and_python(
    page: Page, serving: Serving, bus: SyncBus, fresh: Fresh
) -> None:
    enter(page, serving)
    name = fresh("browser")
    with bus.channel(name, "server", "client") as channel:
        page.run(
            """
            window.channel = await made(bus, 'channel', name, 'client', 'server');
            window.heard = [];
            channel.on('message', (text) => heard.push(text));
            const connected = told(channel, 'remote:connect');
            channel.connect();
            await connected;
            channel.send('from the page €');
            """,
            name=name,
        )
        assert next(iter(channel)).text == "from the page €"
        channel.send("to the page 😀")
        assert page.run("await until(() => heard.length > 0); return heard") == ["to the page 😀"]


def test_pubsub_between_a_page_and_python(
    page: Page, serving: Serving, bus: SyncBus, fresh: Fresh
) -> None:
    enter(page, serving)
    name = fresh("browser")
    page.run(
        """
        window.news = await made(bus, 'pubsub', name);
        window.heard = [];
        news.on('message', (text) => heard.push(text));
        const subscribed = told(news, 'subscribed');
        news.subscribe();
        await subscribed;
        """,
        name=name,
    )
    with bus.pubsub(name) as news:
        news.publish("to the page")
        assert page.run("await until(() => heard.length === 1); return heard") == ["to the page"]
        page.run("news.publish('from the page')")
        messages = iter(news)
        assert [next(messages).text, next(messages).text] == ["to the page", "from the page"]


def test_persisted_object_of_a_page_is_the_one_of_python(
    page: Page, serving: Serving, bus: SyncBus, fresh: Fresh
) -> None:
    enter(page, serving)
    name = fresh("browser")
    page.run(
        """
        window.object = await made(bus, 'persistify', name, {}, ['who', 'many']);
        object.who = 'page €';
        object.many = {one: 1};
        await asked(object, 'save');
        """,
        name=name,
    )
    kept = bus.persist(name)
    assert kept.load()
    assert dict(kept) == {"who": "page €", "many": {"one": 1}}
    kept["who"] = "python"
    kept.save()
    assert page.run("await asked(object, 'load'); return object.who") == "python"


def refused(serving: Serving) -> int:
    """How many handshakes the server has refused for their secret."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{serving.port}/metrics", timeout=PATIENCE_S
    ) as answer:
        text = answer.read().decode()
    [found] = re.findall(
        r'^busmq_federation_refused_total\{reason="secret"\} (\d+)', text, re.MULTILINE
    )
    return int(found)


def test_page_with_a_wrong_secret_gets_nowhere(page: Page, serving: Serving, fresh: Fresh) -> None:
    before = refused(serving)
    enter(page, serving, "not the secret at all")
    page.run(
        "window.reached = false; made(bus, 'queue', name).then(() => { reached = true; })",
        name=fresh("browser"),
    )
    wait_until(lambda: refused(serving) > before, what="the server refuses the page")
    assert page.run("return reached") is False


def test_page_finds_back_to_a_server_that_was_restarted(
    page: Page, redis_url: str, tmp_path: Path, bus: SyncBus, fresh: Fresh
) -> None:
    name, listen = fresh("browser"), f"127.0.0.1:{lasting_port()}"
    with bus.queue(name) as queue:
        with Serving(redis_url, tmp_path, everything(SECRET), listen=listen) as serving:
            enter(page, serving)
            page.run(
                """
                window.queue = await made(bus, 'queue', name);
                window.got = [];
                queue.on('message', (text, id) => got.push(text));
                const attached = told(queue, 'attached');
                queue.attach({ttl: 60});
                await attached;
                queue.consume();
                """,
                name=name,
            )
            queue.push("before")
            page.run("await until(() => got.length === 1)")
        queue.push("meanwhile")
        with Serving(redis_url, tmp_path, everything(SECRET), listen=listen):
            queue.push("after")
            assert page.run("await until(() => got.length === 3); return got") == [
                "before",
                "meanwhile",
                "after",
            ]
