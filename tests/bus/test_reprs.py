"""What the public objects say of themselves in a log or a console: enough, and no secret."""

from __future__ import annotations

from busmq_spark import Bus, FederationServer, Keyring, Message, Outbox

SECRET = "hunter2-hunter2-hunter2"
URL = f"redis://:{SECRET}@h:1"


async def test_each_object_names_itself_and_no_secret() -> None:
    bus, far = Bus(URL, password=SECRET), Bus(federate="wss://h/bus", federate_secret=SECRET)
    queue, topic, jobs = bus.queue("q"), bus.topic("t", 2), bus.jobs("j")
    keyring = Keyring.single(SECRET)

    @jobs.worker("g")
    async def work(job: object) -> None:
        del job

    things = {
        bus: "Bus('redis://***@h:1')",
        far: "Bus('wss://h/bus')",
        Bus.sync(URL): "Bus('redis://***@h:1') (synchronous)",
        queue: "Queue('q')",
        queue.group("g"): "OrderedGroup('q', 'g')",
        queue.group("s", shared=True): "SharedGroup('q', 's')",
        topic: "Topic('t')",
        topic.group("m"): "Member('t', 'm')",
        jobs: "Jobs('j')",
        jobs.get("1"): "Job('1')",
        jobs.completions(): "JobOutcomeIterator('j')",
        work: "Worker('j', 'g')",
        bus.channel("c"): "Channel('c', 'local', 'remote')",
        bus.pubsub("p"): "Pubsub('p')",
        bus.service("s"): "Service('s')",
        bus.mirror(URL, "q"): "BusMirror('redis://***@h:1')",
        Message(1, b"abc"): "Message(id=1, value=b'abc')",
        FederationServer(bus, keyring, port=7): "FederationServer(127.0.0.1:7)",
        Outbox("x.db", URL): "Outbox('x.db')",
    }
    assert {repr(thing) for thing in things} == {*things.values()}
    assert not [thing for thing in (*things, keyring) if SECRET in repr(thing)]
