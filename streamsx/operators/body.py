"""Operator `body`: gives a record to the body of an agent, which iterates the values.

A loop that ends in a body is a generator. The code yields the index of the record in the input,
the key and the value.
"""

from typing import Final

from streamsx.operators.operator import Code, Operator

BODY: Final = Operator("body", Code("yield index, {key}, {value}"))
