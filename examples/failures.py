"""Failures: payments to a bank that is busy at times, and payments that nobody can make.

    python -m streamsx worker streamsx.examples.failures
    python -m streamsx send payments 1='{"account": "ann", "cents": 500}'
    python -m streamsx send payments 2='{"account": "busy", "cents": 500}'
    python -m streamsx send payments 3='{"account": "ann", "cents": -5}'
    python -m streamsx send payments 4='{"account": "ann"}'
    python -m streamsx table --app failures paid
    python -m streamsx read failures-dlq --headers

1 is paid at once. 2 is paid at the third try: the bank is busy twice, and its task waits one second
and then two, while all other tasks go on. 3 raises ValueError, which no try mends; 4 has no amount,
so it cannot be decoded. Both are dead letters: records of the topic `failures-dlq`, as they came,
with the error in their headers. The table has the payments 1 and 2.

The function `choose` sees each failure and says what becomes of the record. A failed record leaves
nothing in tables. What it has asked of other systems stays, so a real bank gets the number of the
payment, and pays a number once.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import streamsx
from streamsx import App, Stream

TRIES = streamsx.retry(attempts=5, backoff="1s", then="dlq")


@dataclass(frozen=True)
class Transfer:
    """Payment to an account, in cents. The key of the record is the number of the payment."""

    account: str
    cents: int


asked = Counter[str]()
"""Number of times that the bank was asked for each payment."""


def pay(number: str, transfer: Transfer) -> None:
    """Stand in for a bank that is busy at the first two times that it is asked for some payments.

    Raises:
        ConnectionError: the bank is busy.
    """
    asked[number] += 1
    if transfer.account == "busy" and asked[number] < 3:
        raise ConnectionError(f"the bank is busy: payment {number}")


def choose(failure: Any) -> Any:
    """Return what becomes of a record that failed: tries for a busy bank, else a dead letter."""
    return TRIES if isinstance(failure.error, ConnectionError) else "dlq"


app = App("failures", on_decode_error="dlq")
payments = app.topic("payments", key_type=str, value_type=Transfer)
paid = app.Table("paid", default=int, key_type=str, value_type=int)


@app.agent(payments, on_error=choose)
async def transfer_all(stream: Stream[Transfer]) -> None:
    async for number, transfer in stream.items():
        if transfer.cents <= 0:
            raise ValueError(f"payment {number} of {transfer.cents} cents")
        pay(number, transfer)
        paid[number] = transfer.cents


if __name__ == "__main__":
    app.main()
