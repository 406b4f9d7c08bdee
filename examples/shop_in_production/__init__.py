"""Online shop as it would run: several workers, exactly once, with bad and late orders.

README.md has the tour: `app` is the shop, `feed` makes its orders, `replay` sends dead letters
again.
"""
