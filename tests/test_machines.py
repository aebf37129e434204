"""Namespaces that stand for machines: where they cannot see the code, their tests say so and are skipped."""

from pathlib import Path

import pytest

from tests.machines import require


@pytest.mark.parametrize("root", ["/tmp/retable", "/root/retable"])
def test_a_checkout_that_machines_do_not_see_is_named(root):
    with pytest.raises(pytest.skip.Exception, match=f"^{root}: machines have their own /tmp.*; move checkout"):
        require(Path(root))
