"""What is imported late, and what travels with a package that is sent by value: what it stands for,
or the error about what is missing.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

WITHOUT_WEBSOCKETS = "import sys; sys.modules['websockets'] = None\n"
BY_VALUE = (
    "from pyspark import cloudpickle; import busmq_spark;"
    " cloudpickle.register_pickle_by_value(busmq_spark)\n"
)
SEND = "import sys; sys.stdout.buffer.write(cloudpickle.dumps(sent))\n"
WORKER = """
import pickle, sys
class NoneOfOurs:  # the wheel is not installed there, nor websockets
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('busmq_spark', 'websockets'):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, NoneOfOurs())
print(pickle.loads(sys.stdin.buffer.read())())
"""


def at_a_worker(script: str) -> subprocess.CompletedProcess[bytes]:
    """What becomes of ``sent`` of the driver's script at a worker that has neither the package nor
    web sockets.
    """
    driver = subprocess.run(
        [sys.executable, "-c", script + SEND], capture_output=True, check=False, timeout=120
    )
    assert driver.returncode == 0, driver.stderr.decode()
    return subprocess.run(
        [sys.executable, "-c", WORKER],
        input=driver.stdout,
        capture_output=True,
        check=False,
        timeout=120,
    )


def test_a_package_that_the_driver_lacks_too_is_named_by_the_worker() -> None:
    asked = (
        "from busmq_spark.spark.stores import _federation_address\ndef sent(): return"
        " _federation_address.get()\n"
    )
    found = at_a_worker(WITHOUT_WEBSOCKETS + BY_VALUE + asked).stderr.decode().splitlines()[-1]
    assert (
        "[BUSMQ_TOOL_MISSING] Python package websockets is missing: federation.url (on the driver"
        " and on executors) needs it" in found
    )
    assert found.endswith("Run: pip install 'busmq_spark[federation]'")


def test_a_bus_in_a_function_of_a_query_takes_no_web_sockets_along() -> None:
    named = "from busmq_spark.bus.bus import Bus\ndef sent(): return Bus.__name__\n"
    done = at_a_worker(BY_VALUE + named)
    assert done.stdout == b"Bus\n", done.stderr.decode()


def test_a_fault_of_the_package_itself_is_no_missing_package() -> None:
    script = (
        "from busmq_spark.extras import"
        " DeferredImport\nDeferredImport('queue.no_such_module', 'x').get()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert (
        done.stderr.splitlines()[-1]
        == "ModuleNotFoundError: No module named 'busmq_spark.queue.no_such_module'"
    )
