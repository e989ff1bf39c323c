"""Clients of npm busmq produce and consume while a driver dies in the middle of a commit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.process import Garage
from tests.faults.proxy import Proxy
from tests.faults.scene import Bus, Pipeline
from tests.peers.node import Peer, missing
from tests.support import wait_until

pytestmark = [
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.redis,
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()) and os.environ.get("CI") != "true", reason=missing()),
]


def test_npm_clients_see_every_message_once_and_in_order_while_the_driver_is_killed(
    bus: Bus, proxy: Proxy, garage: Garage, tmp_path: Path
) -> None:
    run = Pipeline(bus, tmp_path, maxMessagesPerTrigger="2500", maxMessagesPerPartition="1250")
    bus.create("out")
    texts = [f"{seq:07d} grün" for seq in range(4000)]
    with Peer([bus.server.url]) as producer, Peer([bus.server.url]) as consumer:
        assert producer.attach("in")
        assert consumer.attach("out")
        consumer.consume("out")
        assert producer.push_all("in", texts[:2500]) == list(range(1, 2501))
        with garage.take() as driver:
            gate = proxy.hold(lambda command: command.name == "commit", skip=2)
            run.start(driver, proxy.url)
            held = run.wait_at(gate, driver)
            assert bus.progress("out") == "0:1:0"
            driver.kill()
            held.drop()
            gate.open()
        assert producer.push_all("in", texts[2500:3000]) == list(range(2501, 3001))
        assert producer.count("in") == 3000
        assert consumer.received("out", 1250) == [(seq + 1, texts[seq]) for seq in range(1250)]
        with garage.take() as driver:
            run.start(driver, proxy.url)
            assert producer.push_all("in", texts[3000:]) == list(range(3001, 4001))
            assert consumer.received("out", 2750) == [
                (seq + 1, texts[seq]) for seq in range(1250, 4000)
            ]
            wait_until(lambda: producer.count("in") == 0, what="the source is acked")
            assert driver.active
        assert consumer.count("out") == 0
        assert consumer.received_nothing_more("out")
        assert (producer.errors, consumer.errors) == ([], [])
