"""README.md, as far as it can be run: its app, the commands it names, the folders it links."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from streamsx.testing import TestDriver

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_readme_app_sums_the_spending_of_each_user() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in source.splitlines() if line]) <= 10
    shop = ModuleType("shop")
    exec(source, vars(shop))  # ours: it is what users will paste

    with TestDriver(shop.app, partitions={"orders": 4}) as driver:
        orders = [{"user": user, "price": 1.5} for user in ("ann", "bob", "ann")]
        driver.pipe(shop.orders, orders)
        driver.restart()
        driver.pipe(shop.orders, orders[:1])
        assert driver.table("totals") == {"ann": 4.5, "bob": 1.5}


@pytest.mark.parametrize("command", sorted(set(re.findall(r"python -m streamsx (\w+)", README))))
def test_readme_command_exists(command: str) -> None:
    assert (ROOT / "tools" / f"{command}.py").exists()


@pytest.mark.parametrize("place", sorted(set(re.findall(r"\]\(([^)]*)\)", README))))
def test_readme_link_target_exists(place: str) -> None:
    assert (ROOT / place).exists()
