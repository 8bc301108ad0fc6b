"""Events, written in the transaction of the change they tell of."""
