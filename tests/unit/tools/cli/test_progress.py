"""The console that commands print on."""

import io

from rich.console import Group
from rich.table import Table

from streamsx.tools.cli.progress import console_on

ODD = "host:a:1 eu:on:1 2001:db8:b:on:1 [red]x[/red] [/bold] 5 True"


def printed(what: object, *, markup: bool = False) -> str:
    stream = io.StringIO()
    console_on(stream, markup=markup).print(what)
    return stream.getvalue()


def test_text_is_printed_as_it_is() -> None:
    assert printed(ODD) == f"{ODD}\n"


def test_text_of_a_cell_is_printed_as_it_is() -> None:
    table = Table.grid()
    table.add_row(ODD)
    assert printed(Group(ODD, table)) == f"{ODD}\n" * 2


def test_markup_is_a_style_and_draws_no_pictures() -> None:
    assert printed("[bold]eu:on:1[/bold]", markup=True) == "eu:on:1\n"
