"""The machines of a soak: their clocks can be set, and their power cut. Both by ``machine.c``,
preloaded into what runs on them.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def can_be_set() -> bool:
    """Whether this machine can make the library: it needs Linux and a compiler."""
    return os.uname().sysname == "Linux" and shutil.which("cc") is not None


class Machine:
    """What is started within :meth:`on`, or with :attr:`environment`, runs on it."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is made, and is its own."""
        self.environment: dict[str, str] = {}
        self._clock, self._disk = folder / "clock", folder / "disk"
        self._disk.mkdir(parents=True)
        self._clock.write_bytes(struct.pack("q", 0))
        if can_be_set():
            library = folder / "machine.so"
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True
            )
            self.environment = {
                "LD_PRELOAD": str(library),
                "MACHINE_CLOCK": str(self._clock),
                "MACHINE_DISK": str(self._disk),
            }

    @contextmanager
    def on(self) -> Iterator[None]:
        """Processes that start meanwhile, and theirs, run on this machine."""
        before = {name: os.environ.pop(name, None) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

    def set_clock(self, seconds: int) -> None:
        """Move the clock of everything that runs here by so many seconds."""
        with self._clock.open("r+b") as file:
            ahead = struct.unpack("q", file.read(8))[0]
            file.seek(0)
            file.write(struct.pack("q", ahead + seconds))

    def forget(self) -> None:
        """What was synced so far is of no interest any more; the numbers of its files may be given
        to others.
        """
        for file in self._disk.iterdir():
            file.unlink()

    def cut_power(self, folder: Path, chance: random.Random) -> int:
        """Of ``folder``, whose users are dead, keep what was synced; of the rest, chance decides.
        The result is how many changes got lost.

        A name is kept by a sync of its folder, the bytes behind it by one of the file.
        """
        names, lost = self._names(folder), 0
        for file in sorted(folder.iterdir()):
            number = file.stat().st_ino
            if names.get(file.name) != number and chance.random() < 0.5:
                shutil.rmtree(file) if file.is_dir() else file.unlink()
                lost += 1
            elif file.is_dir():
                lost += self.cut_power(file, chance)
            else:
                lost += self._cut_bytes(file, number, chance)
        for name, number in names.items():  # a removal that was not synced
            if (
                not (folder / name).exists()
                and (synced := self._disk / str(number)).exists()
                and chance.random() < 0.5
            ):
                shutil.copy(synced, folder / name)
                lost += 1
        return lost

    def _names(self, folder: Path) -> dict[str, int]:
        file = self._disk / f"{folder.stat().st_ino}.names"
        lines = file.read_text().splitlines() if file.exists() else []
        return {name: int(number) for number, _, name in (line.partition(" ") for line in lines)}

    def _cut_bytes(self, file: Path, number: int, chance: random.Random) -> int:
        synced = self._disk / str(number)
        kept = synced.read_bytes() if synced.exists() else b""
        written = file.read_bytes()
        if kept == written or chance.random() < 0.5:
            return 0
        file.write_bytes(kept or written[: chance.randrange(len(written))])
        return 1
