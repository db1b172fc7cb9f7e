"""The effect of a changed pipeline file: which keys differ, and what each job does then.

Nothing here reads the store: the caller passes in what the server has.
"""
