"""Dead letters: how rows become one, are counted, and are published again."""
