"""Mutation testing of the pure modules: each is changed in one place at a time, and its unit tests must notice.

An own runner, because a mutant then costs a fork and not a start of Python: the parent has the libraries loaded, a child gets the
changed module through its import system and runs the module's tests until the first one fails.
"""
