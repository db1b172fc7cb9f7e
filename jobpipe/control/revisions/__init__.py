"""What a changed file of a pipeline would do: which keys differ, what each job does, and the classes of all keys.

Nothing here reads the store: the caller passes in what the server has.
"""
