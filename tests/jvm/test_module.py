"""The Java module's own tests, run by Maven as a part of this run: a failure there is a failure
here.
"""

from __future__ import annotations

import pytest

from tests.jvm import module
from tests.peers.node import need


@pytest.mark.jvm
@pytest.mark.slow
def test_the_java_module_passes_its_own_tests() -> None:
    need(module.missing())
    module.run_junit()
