"""Spark drivers, which may serve one round after another."""

from __future__ import annotations

from pathlib import Path

from tests.faults.process import DriverProcess
from tests.soak.machine import Machine


class Drivers:
    """One that outlives its round serves the next of its sort."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self._folder, self._machine, self._made = folder, machine, 0
        self._all: list[DriverProcess] = []
        self._idle: dict[tuple[str, bool], DriverProcess] = {}

    def take(self, master: str, *, live: bool) -> DriverProcess:
        if found := self._idle.pop((master, live), None):
            return found
        self.close()  # one more Java beside it would only take its memory
        return self.make(master, live=live)

    def make(self, master: str, *, live: bool) -> DriverProcess:
        """A new one."""
        self._made += 1
        self._all = [each for each in self._all if each.lives]
        self._all.append(
            DriverProcess(
                self._folder / f"driver-{self._made}",
                master,
                live=live,
                more=self._machine.environment,
            )
        )
        return self._all[-1]

    def give_back(self, driver: DriverProcess, master: str, *, live: bool) -> None:
        self._idle[master, live] = driver

    def close(self) -> None:
        for driver in self._idle.values():
            driver.kill()
        self._idle.clear()

    def kill(self) -> None:
        """All of them, those at work too."""
        for driver in self._all:
            if driver.lives:
                driver.kill()
