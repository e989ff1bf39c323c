"""Use of the API that mypy must pass or refuse: each ``type: ignore`` here is an error when it is
not needed. Nothing runs it.
"""
# mypy: enable-error-code="arg-type, attr-defined, call-arg, call-overload, unused-ignore"
# mypy: warn-unused-ignores

from __future__ import annotations

from busmq_spark import Bus


def settings_are_named() -> None:
    Bus("redis://h", password="x", reply_timeout_s=2.5)
    Bus.sync("redis://h", password="x")
    Bus("redis://h", pasword="x")  # type: ignore[arg-type]
    Bus.sync("redis://h", pasword="x")  # type: ignore[arg-type]
    Bus("redis://h", reply_timeout_s="x")  # type: ignore[arg-type]
    Bus("redis://h", layout="ring")  # type: ignore[arg-type]


def events_are_named(bus: Bus) -> None:
    @bus.on("online")
    def tell() -> None: ...

    bus.off("online", tell)
    bus.on("onlin", tell)  # type: ignore[call-overload]
    bus.queue("q").on("closed", tell)  # type: ignore[call-overload]


def calls_without_a_loop_are_typed() -> None:
    with Bus.sync("redis://h") as bus, bus.queue("q") as queue:
        number: int = queue.push("x")
        ids: list[int] = queue.push_many(["x"])
        ids.extend(message.id for message in queue.consume(max=number))
        for message in queue.consume(reliable=True):
            message.ack()
        queue.delete()
        queue.pusch("x")  # type: ignore[attr-defined]
        queue.consume(max="x")  # type: ignore[arg-type]
        bus.que("q")  # type: ignore[attr-defined]

        @bus.on("online")
        def tell() -> None: ...

        with bus.service("s") as service:
            service.connect(timeout_s=1.5)
            service.connect(timeout_ms=1500)  # type: ignore[call-arg]
        assert bus.jobs("j").send(bus.jobs("j").new(), wait=["g"])["g"].ok
    bus.close()


async def a_bus_is_started() -> None:
    bus: Bus = await Bus("redis://h").start()
    await bus.aclose()
